"""What a sink is, and how a run's rounds reach it from the ledger: live, afterwards, or both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ..core.errors import ConfigError, FedwardenError
from ..core.registry import component, describe
from ..core.types import RoundRecord
from ..store.ledger import Ledger, Run
from .data_points import MOST, Clients, DataPoint, chosen, data_points

TRIES = 3  # failures in a row after which a run leaves a sink alone


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


class SinkError(FedwardenError):
    """A sink that did not take a round."""


class Feed:
    """One sink of one run. It reads the ledger after the last round that arrived, so nothing is sent twice."""

    def __init__(self, sink: Any, clients: Clients = "all", most: int = MOST) -> None:
        """``sink`` is a name, a table with options, or a sink; ``clients`` and ``most`` as in :func:`chosen`."""
        if clients not in ("all", "flagged") or most < 0:
            raise ConfigError(f"a sink takes clients = 'all' or 'flagged' and most >= 0; got {clients!r} and {most}")
        self.sink: Sink = component("sink", sink)
        self.name = str(describe(self.sink)["name"])
        self.clients, self.most = clients, most
        self.channel: Channel | None = None
        self.failures = 0
        self.shortened: int | None = None  # the first round of which some clients were not sent

    @classmethod
    def of(cls, spec: Any) -> Feed:
        """From a name, a sink, or a table with the options of both."""
        own = {k: spec[k] for k in ("clients", "most") if k in spec} if isinstance(spec, Mapping) else {}
        return cls({k: v for k, v in spec.items() if k not in own} if own else spec, **own)

    def send(self, ledger: Ledger, run: int, before: int | None = None) -> int:
        """Send the rounds that are not there yet, up to one of them; how many those were."""
        sent, doing = 0, "be opened"
        try:
            channel = self.channel = self.channel or self.sink(ledger.run(run))
            for record in ledger.records(run, after=channel.last):
                if before is None or record.round < before:
                    doing = f"take round {record.round}"
                    channel.write(record, data_points(record, self.clients, self.most))
                    self._look(record)
                    sent += 1
        except Exception as error:
            self.failures += 1
            self.close("running")
            if isinstance(error, FedwardenError):
                raise
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise SinkError(f"the sink {self.name!r} could not {doing}: {reason}") from error
        self.failures = 0
        return sent

    @property
    def note(self) -> str | None:
        """What a reader of the target should know."""
        if self.shortened is None:
            return None
        who = f"there are more than most={self.most} clients"
        return f"the sink {self.name!r} is sent flagged and excluded clients only, since {who}; set most to send more"

    def close(self, state: str) -> None:
        """Let go of the target, which may be away already."""
        channel, self.channel = self.channel, None
        with suppress(Exception):
            if channel is not None:
                channel.close(state)

    def _look(self, record: RoundRecord) -> None:
        if self.clients == "all" and self.shortened is None:
            left = set(record.client_ids) - set(chosen(record, self.clients, self.most))
            self.shortened = record.round if left else None


class Live:
    """The sinks of a run that goes on: whatever happens to them, it does."""

    def __init__(self, feeds: Iterable[Feed] = ()) -> None:
        self.feeds = list(feeds)
        self.noted: set[str] = set()

    def send(self, ledger: Ledger, run: int) -> list[str]:
        """Send what is new to every sink; what is to be noted of it in the run's newest round.

        A sink that fails is tried again after the next round, a few times, and then left alone.
        """
        notes = [note for feed in self.feeds for note in _attempt(feed, ledger, run) if note not in self.noted]
        self.noted.update(notes)
        return notes

    def close(self, state: str) -> None:
        for feed in self.feeds:
            feed.close(state)


def _attempt(feed: Feed, ledger: Ledger, run: int) -> list[str]:
    if feed.failures >= TRIES:
        return []
    try:
        feed.send(ledger, run)
    except Exception as error:
        if feed.failures == 1:
            return [f"{error}; it is tried again after the next round"]
        gone = f"{error}; it is left alone: fedwarden send {run} --to {feed.name} sends the rest"
        return [gone] if feed.failures >= TRIES else []
    return [feed.note] if feed.note else []
