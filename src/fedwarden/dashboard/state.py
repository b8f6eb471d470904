"""What the pages know of a workspace: read when its files change, kept until they change again.

Nothing here writes. A run that grows is read from its last known round on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from ..core.types import Observation, RoundRecord
from ..store.claim import is_abandoned
from ..store.ledger import Ledger, LedgerError, Run
from ..store.overview import brief
from ..store.series import Series
from ..store.story import Story
from ..store.word import Said, said_in

T = TypeVar("T")

PATIENCE = 1.0  # seconds to wait for a locked ledger; the page asks again by itself
SETTLED = 0.2  # seconds after which a file's time tells that it has not changed since it was read
RECENT = 30  # rounds that the overview of all watches shows
KEPT = 24  # values, of which a run of 1,000 clients and 500 rounds takes some 100 MB


@dataclass(frozen=True, eq=False)
class RunView:
    """A run as far as it was read, with the names of all its watches and what the operator said."""

    run: Run
    watches: tuple[str, ...]
    records: tuple[RoundRecord, ...]
    series: Series
    said: tuple[Said, ...] = ()
    full: Callable[[int], RoundRecord] | None = None
    """Reads one round with all its watches, where ``records`` have one alone."""

    @cached_property
    def story(self) -> Story:
        """The run told client by client."""
        rounds = {record.round: record for record in self.records}.__getitem__
        return Story(self.series, rounds, self.full or rounds, self.watches)


class Stamp(NamedTuple):
    """What tells two states of a workspace apart: the ledger's file, its size and time with those of its log, and of
    the runs that are recorded as running those that have no writer any more.
    """

    file: int
    parts: tuple[tuple[int, int], ...]
    gone: tuple[int, ...] = ()


class Kept(NamedTuple):
    stamp: Stamp
    settled: bool
    value: Any


class Workspace:
    """The ledger of a folder; safe to use from many threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._running: list[Run] = []
        self._lock = RLock()

    def briefs(self) -> list[dict[str, Any]]:
        """All runs in short, newest first."""
        return self._read("briefs", lambda ledger, _: [brief(ledger, run) for run in ledger.runs()])

    def run(self, number: int) -> Run:
        """The head of a run."""
        return self._read(("run", number), lambda ledger, _: _find(ledger, number))

    def loudest(self, number: int) -> str | None:
        """The watch that flagged most clients of a run so far."""
        return self._read(("loudest", number), lambda ledger, _: ledger.loudest(number))

    def view(self, number: int, watch: str | None = None) -> RunView:
        """A run with one of its watches, the loudest where it has none of that name; with all where none is given."""
        with self._lock:
            if watch is not None and ("view", number, None) not in self._kept:
                names = self._read(("watches", number), lambda ledger, _: ledger.watches(number))
                only = watch if watch in names else self.loudest(number)
            else:
                only = None
            return self._read(("view", number, only), lambda ledger, old: self._grow(ledger, number, only, old))

    def recent(self, number: int) -> RunView:
        """The last rounds of a run with all its watches."""
        return self._read(("recent", number), lambda ledger, old: _tail(ledger, number, old))

    def record(self, number: int, round: int) -> RoundRecord:
        """One round in full; it never changes."""
        return self._read(("record", number, round), lambda ledger, old: old or ledger.record(number, round))

    def observers(self, number: int) -> tuple[str, ...]:
        """The participants whose audits a run has recorded."""
        return self._read(("observers", number), lambda ledger, _: ledger.observers(number))

    def observations(self, number: int, observer: str) -> list[Observation]:
        """What one observer of a run saw."""
        return self._read(("audit", number, observer), lambda ledger, _: ledger.observations(number, observer))

    def said(self, number: int) -> tuple[Said, ...]:
        """What the operator said of a run."""
        return self._read(("said", number), lambda ledger, _: tuple(said_in(ledger, number)))

    def stamp(self) -> Stamp:
        """The state of the ledger's files and of the locks beside it, which costs no look into them."""
        path = self.folder / "ledger.sqlite"
        gone = tuple(run.id for run in self._running if is_abandoned(self.folder, run.id, run.committed))
        try:
            parts = (_size_and_time(path), _size_and_time(path.with_name(f"{path.name}-wal")))
            # readers make empty logs
            return Stamp(path.stat().st_ino, tuple(part for part in parts if part and part[0]), gone)
        except OSError:
            return Stamp(0, ())

    def _grow(self, ledger: Ledger, number: int, watch: str | None, old: RunView | None) -> RunView:
        """The view with the rounds that were committed since."""
        run = _find(ledger, number)
        if old is None or old.run.created != run.created:
            full = None if watch is None else partial(self.record, number)
            old = RunView(run, (), (), Series.of(()), full=full)
        last = old.records[-1].round if old.records else 0
        new = ledger.records(number, last, None if watch is None else [watch])
        watches, said = old.watches or ledger.watches(number), tuple(said_in(ledger, number))
        if not new:  # the same object where nothing changed, as what is made of it is kept by it
            same = (run, watches, said) == (old.run, old.watches, old.said)
            return old if same else replace(old, run=run, watches=watches, said=said)
        series = old.series.then(new) if old.records else Series.of(new)
        return replace(old, run=run, watches=watches, records=(*old.records, *new), series=series, said=said)

    def _read(self, key: Hashable, read: Callable[[Ledger, Any], T]) -> T:
        """A value as it was read last, read again if the ledger has changed since; ``read`` gets the former value."""
        with self._lock:
            stamp, kept = self.stamp(), self._kept.get(key)
            if kept is not None and kept.settled and kept.stamp == stamp:
                self._kept.move_to_end(key)
                return kept.value  # type: ignore[no-any-return]
            old = kept.value if kept is not None and kept.stamp.file == stamp.file else None
            with Ledger(self.folder, read_only=True, patience=PATIENCE) as ledger, ledger.snapshot():
                value, self._running = read(ledger, old), ledger.heads("WHERE state = 'running'")
            newest = max((modified for _, modified in stamp.parts), default=0)
            self._kept[key] = Kept(stamp, time.time_ns() - newest > SETTLED * 1e9, value)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return value


def _find(ledger: Ledger, number: int) -> Run:
    found = next(iter(ledger.heads("WHERE id = ?", number)), None)
    if found is None:
        raise LedgerError(f"Run {number} does not exist.")
    return found


def _tail(ledger: Ledger, number: int, old: RunView | None) -> RunView:
    """The last rounds; those of them that were read before are kept."""
    run, first = _find(ledger, number), ledger.last_round(number) - RECENT
    known = [r for r in old.records if r.round > first] if old is not None and old.run.created == run.created else []
    records = (*known, *ledger.records(number, known[-1].round if known else max(first, 0)))
    return RunView(run, ledger.watches(number), records, Series.of(records))


def _size_and_time(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size, found.st_mtime_ns
