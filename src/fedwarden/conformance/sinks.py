"""The laws of a sink: it opens for a run, takes rounds, and knows the newest that has arrived."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import numpy as np

from ..core.types import Rejection, RoundRecord, WatchRecord
from ..sinks.data_points import data_points
from ..sinks.feed import Channel, Sink
from ..store.ledger import Run
from .component import Component
from .law import CannotTell, laws, line, require

ROUNDS = 3
HOSTILE = ("a/b", "a:2Fb", "..", "", "x y", "é", "{}\"'\n", "n" * 300, "<script>", "~")


def record(t: int, clients: tuple[str, ...] = ("a", "b", "c")) -> RoundRecord:
    """A round with one watch, a metric that is not a number, and a reply that was rejected."""
    n = len(clients)
    scores, last = np.arange(n, dtype=np.float64) + 10 * t, np.arange(n) == n - 1
    watch = WatchRecord("far", scores / 2, scores, 10.0 * t + n - 1.5, last)
    weights = np.where(last, 0.0, 1.0 / max(1, n - 1))
    stranger = (Rejection("stranger\n", "2 arrays, expected 4"),)
    return RoundRecord(
        t, clients, np.full(n, 100.0), weights, (watch,), last, (), stranger, (),
        {"accuracy": 0.5, "train/loss": 1.0 / t, "broken": math.nan},
    )  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """A sink, and a folder for what it writes to the current one."""

    sink: Sink
    folder: TemporaryDirectory[str]

    @contextmanager
    def opened(self, name: str, state: str = "done") -> Iterator[Channel]:
        """A channel of a run of that name, closed in the end."""
        with chdir(self.folder.name):
            channel = self.sink(Run(1, name, 1.5e9, "running", "in-process", {}, {}, {}, ROUNDS))
            try:
                yield channel
            finally:
                channel.close(state)


def subject(component: Component) -> Examined:
    """The sink; where what its options name cannot be reached, no law can tell anything."""
    it = Examined(component.make(), TemporaryDirectory(ignore_cleanup_errors=True))
    try:
        with it.opened("first") as channel:
            write(channel, record(1))
    except OSError as error:  # a collector that is away, a port that is taken
        raise CannotTell(f"its target cannot be reached: {line(error)}") from error
    return it


def write(channel: Channel, one: RoundRecord) -> None:
    """Send a round."""
    channel.write(one, data_points(one))


def begins_in_the_run(it: Examined) -> None:
    """A new target has no rounds, or counts as if it had some of the run's."""
    with it.opened("begins") as channel:
        right = isinstance(channel.last, int) and 0 <= channel.last <= ROUNDS
        require(right, f"expected the newest round from 0 to {ROUNDS}; got {channel.last!r}")


def knows_the_newest(it: Examined) -> None:
    """A round has arrived when it is written, and is the newest then."""
    with it.opened("newest") as channel:
        for t in range(1, ROUNDS + 1):
            write(channel, record(t))
            require(channel.last == t, f"expected the newest round {t}; got {channel.last}")


def opens_again(it: Examined) -> None:
    """Closed in any state it opens again, and does not claim a round that it was not sent."""
    for t, state in enumerate(("running", "interrupted", "failed"), 1):
        with it.opened("again", state) as channel:
            write(channel, record(t))
    with it.opened("again") as channel:
        require(channel.last <= ROUNDS, f"sent rounds 1 to {ROUNDS}: expected none newer; got {channel.last}")


def strange_names(it: Examined) -> None:
    """Names that clients chose do no harm."""
    with it.opened("../strange '; DROP") as channel:
        write(channel, record(1, HOSTILE))
        write(channel, record(2, ()))


def record_untouched(it: Examined) -> None:
    """The round is only read."""
    one, before = record(1), record(1)
    with it.opened("untouched") as channel:
        write(channel, one)
    for what in ("num_examples", "weights", "flagged"):
        alike = np.array_equal(getattr(one, what), getattr(before, what))
        require(alike, f"expected {what!r} as it was; got something else")


LAWS = laws(begins_in_the_run, knows_the_newest, opens_again, strange_names, record_untouched)
