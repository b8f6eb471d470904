"""The sinks of a run that goes on: a thread for each, so that no round waits, and the ledger's outbox between them.

What does not arrive is tried again, by this process or another one, until it does.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Event, Thread

from ..core.words import reason
from ..store import outbox
from ..store.ledger import Ledger, LedgerError
from .alerts import Alerting, Notices
from .feed import Feed

LOG = logging.getLogger("fedwarden.sinks")
LOOK = 1.0  # seconds between two looks at the clock and the outbox
END, SLOW = 10.0, 60.0  # seconds without a delivery that the end of a run waits: after a failure, and for a first try


class Courier:
    """Takes what is new in a run to one sink, in a thread of its own."""

    def __init__(self, feed: Feed, key: str, folder: Path, run: int, first: int) -> None:
        """``first`` is the last round before those of an alert sink, where the outbox does not know it."""
        self.feed, self.key, self.folder, self.run, self.first = feed, key, folder, run, first
        self.upto, self.state, self.wake = first, "running", Event()
        self.every = feed.sink.every if isinstance(feed.sink, Alerting) else 0.0
        self.tried, self.failing, self.noted = -math.inf, False, False
        self.thread = Thread(target=self._work, daemon=True)
        self.thread.start()

    def go(self, upto: int, state: str = "running") -> None:
        """Send the rounds up to one; unless the run goes on, end with them."""
        self.upto, self.feed.moved = upto, time.monotonic()
        self.state = state
        self.wake.set()

    def end(self) -> None:
        """Wait until everything has arrived, or nothing more does."""
        while self.thread.is_alive() and not self._over():
            self.thread.join(LOOK / 10)
        if not self.thread.is_alive():
            self.feed.close(self.state)

    def _over(self) -> bool:
        return self.state != "running" and time.monotonic() > self.feed.moved + (END if self.failing else SLOW)

    def _work(self) -> None:
        while not self._over():
            try:
                with Ledger(self.folder) as ledger:
                    ledger.db.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is made or sent again
                    self._follow(ledger)
                break
            except Exception as error:
                self._warn(f"run {self.run}: the sink {self.feed.name!r} waits: {reason(error)}")
                time.sleep(LOOK)

    def _follow(self, ledger: Ledger) -> None:
        known = outbox.rounds_of(ledger, self.run, self.key)
        mark = self.first if known is None else known.round
        notices, put = self._notices(ledger, mark), partial(outbox.put, ledger, self.run, self.key, self.feed.table)
        if known is None:
            put(mark, () if notices else None)
        due = outbox.due(ledger, self.run, self.key) and 0.0  # what was left of before is tried at once
        told = False
        while not self._over():
            self.wake.clear()
            state, upto = self.state, self.upto  # in this order: the last round is there before the end
            ended, new = state != "running", []
            if notices and upto > mark:
                new = [a for r in ledger.stream(self.run, mark) if r.round <= upto for a in notices.of(r)]
            if notices:
                new += notices.at_the_end(state) if ended and not told else notices.by_the_clock()
            told = ended
            if upto > mark or new:
                put(upto, [asdict(alert) for alert in new] if notices else None)
                mark, due = upto, outbox.due(ledger, self.run, self.key)
            pause = (LOOK if self.failing else 0.0) if ended else self.every
            if due is not None and (ended or due <= time.time()) and time.monotonic() >= self.tried + pause:
                self._deliver(ledger)
                due = outbox.due(ledger, self.run, self.key)
            if due is None and ended:
                return
            self.wake.wait(LOOK if due is None else min(LOOK, max(LOOK / 10, due - time.time())))

    def _notices(self, ledger: Ledger, mark: int) -> Notices | None:
        """Of a sink that takes alerts, what makes them of the rounds after one."""
        if not isinstance(self.feed.sink, Alerting):
            return None
        notices = Notices(ledger.run(self.run), self.feed.sink, mark)
        if mark:
            notices.of(ledger.record(self.run, mark))
        return notices

    def _deliver(self, ledger: Ledger) -> None:
        """Try once; warn of the first failure in a row, and say when deliveries work again."""
        try:
            self.feed.deliver(ledger, self.run, self.key)
        except Exception as error:
            self._warn(f"run {self.run}: {reason(error)}; it stays in the outbox and is tried again")
        else:
            if self.failing:
                LOG.warning("run %d: the sink %r has all that it had missed", self.run, self.feed.name)
            self.failing = False
        if self.feed.note and not self.noted:
            self.noted = True
            LOG.warning("run %d: %s", self.run, self.feed.note)
        self.tried = time.monotonic()

    def _warn(self, words: str) -> None:
        if not self.failing:
            LOG.warning("%s", words)
        self.failing = True


class Live:
    """The sinks of a run that goes on: whatever happens to them, it does."""

    def __init__(self, feeds: Iterable[Feed] = ()) -> None:
        self.feeds = list(feeds)
        for feed in self.feeds:
            if isinstance(feed.sink, Alerting):
                feed.sink.target()
        self.couriers: list[Courier] = []

    def open(self, ledger: Ledger, run: int) -> None:
        """A run begins, or goes on; what an earlier process could not deliver is tried again."""
        self.ledger, self.run, last = ledger, run, ledger.last_round(run)
        places: Counter[str] = Counter()
        for feed in self.feeds:
            places[feed.name] += 1
            key = feed.name if places[feed.name] == 1 else f"{feed.name} {places[feed.name]}"
            self.couriers.append(Courier(feed, key, ledger.folder, run, last))

    def send(self) -> None:
        """Send what is committed; returns at once."""
        last = self.ledger.last_round(self.run) if self.couriers else 0
        for courier in self.couriers:
            courier.go(last)

    def close(self, state: str) -> None:
        """End, after a bounded time, and say what is still pending."""
        if not self.couriers:
            return
        with suppress(LedgerError):
            last = self.ledger.last_round(self.run)
            for courier in self.couriers:
                courier.go(last, state)
            for courier in self.couriers:
                courier.end()
            for line in outbox.told(self.ledger, self.run):
                LOG.warning("%s", line)
