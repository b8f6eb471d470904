"""What a sink is, and how a run's rounds and alerts reach it from the ledger."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, Protocol

from ..core.errors import ConfigError, FedwardenError
from ..core.registry import component, describe
from ..core.types import RoundRecord
from ..core.words import count, reason
from ..store import outbox
from ..store.ledger import Ledger, Run
from .alerts import Alert, Alerting
from .data_points import MOST, Clients, DataPoint, chosen, data_points


class Channel(Protocol):
    """A run's way into a target; ``last`` is the newest round that is there already."""

    @property
    def last(self) -> int: ...

    def write(self, record: RoundRecord, points: Sequence[DataPoint], /) -> None:
        """Send one round; it has arrived when this returns, and is raised about where it has not."""
        ...

    def close(self, state: str, /) -> None:
        """No more rounds now; the run is done, failed, interrupted, or still running."""
        ...


Sink = Callable[[Run], Channel]
"""Opens a target for a run, new to it or not."""


class Feed:
    """One sink of one run. It reads the ledger after the last round that arrived, so no round is sent twice."""

    def __init__(self, sink: Any, clients: Clients = "all", most: int = MOST) -> None:
        """``sink`` is a name, a table with options, or a sink; ``clients`` and ``most`` as in :func:`chosen`."""
        if clients not in ("all", "flagged") or most < 0:
            raise ConfigError(f"a sink takes clients = 'all' or 'flagged' and most >= 0; got {clients!r} and {most}")
        self.sink: Sink = component("sink", sink)
        own = {k: v for k, v in describe(self.sink).items() if k != "kind"}
        self.name = str(own["name"])
        self.table = json.loads(json.dumps({**own, "clients": clients, "most": most}, default=str))
        self.clients, self.most = clients, most
        self.channel: Channel | None = None
        self.moved = time.monotonic()  # when something last arrived
        self.shortened = 0  # the first round of which some clients were not sent

    @classmethod
    def of(cls, spec: Any) -> Feed:
        """From a name, a sink, or a table with the options of both."""
        own = {k: spec[k] for k in ("clients", "most") if k in spec} if isinstance(spec, Mapping) else {}
        return cls({k: v for k, v in spec.items() if k not in own} if own else spec, **own)

    def send(self, ledger: Ledger, run: int, before: int | None = None) -> int:
        """Send the rounds that are not there yet, up to one of them; how many those were."""
        sent = 0
        with self._trying("be opened"):
            channel = self.channel = self.channel or self.sink(ledger.run(run))
        upto = ledger.last_round(run) if before is None else before - 1
        for record in takewhile(lambda r: r.round <= upto, ledger.stream(run, after=channel.last)):
            with self._trying(f"take round {record.round}"):
                channel.write(record, data_points(record, self.clients, self.most))
            self._look(record)
            sent += 1
        return sent

    def deliver(self, ledger: Ledger, run: int, key: str) -> None:
        """Try what the outbox has for it, and write down how it went."""
        waiting = outbox.take(ledger, run, key)
        try:
            if found := [message.content for message in waiting if message.number]:
                with self._trying(f"take {count(len(found), 'alert')}"):
                    if not isinstance(self.sink, Alerting):
                        raise ConfigError(f"the sink {self.name!r} takes no alerts")
                    late = {"advice": ""} if ledger.run(run).state == "done" else {}
                    self.sink.deliver([Alert(**{**content, **late}) for content in found])
                self.moved = time.monotonic()
            for rounds in (m for m in waiting if not m.number):
                self.send(ledger, run, rounds.round + 1)
        except Exception as error:
            outbox.settle(ledger, waiting, reason(error))
            raise
        outbox.settle(ledger, waiting)

    @property
    def note(self) -> str:
        """What a reader of the target should know; empty where all clients were sent."""
        what = (
            f"round {self.shortened}: the sink {self.name!r} is sent flagged and excluded clients only, since there are"
        )
        return f"{what} more than most={self.most} clients; set most to send more" if self.shortened else ""

    def close(self, state: str) -> None:
        """Let go of the target, which may be away already."""
        channel, self.channel = self.channel, None
        with suppress(Exception):
            if channel is not None:
                channel.close(state)

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self.close("running")
            if isinstance(error, FedwardenError):
                raise
            raise FedwardenError(f"the sink {self.name!r} could not {what}: {reason(error)}") from error

    def _look(self, record: RoundRecord) -> None:
        self.moved = time.monotonic()
        if self.clients == "all" and not self.shortened:
            left = set(record.client_ids) - set(chosen(record, self.clients, self.most))
            self.shortened = record.round if left else 0
