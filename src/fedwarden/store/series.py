"""A run as arrays, rounds x clients: what everything that draws, compares or exports a run works on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.notes import DOUBTS, Note
from ..core.types import RoundRecord

TOLD = 64  # names of what is known of single clients that a run has at most
Grid = NDArray[np.float64]  # (rounds, clients); NaN where a client did not take part


@dataclass(frozen=True, eq=False)
class WatchSeries:
    """One watch over a run; ``threshold`` and ``warnings`` are by round."""

    name: str
    signal: Grid
    scores: Grid
    flagged: NDArray[np.bool_]
    threshold: NDArray[np.float64]
    warnings: Mapping[int, Note]
    words: str = ""


@dataclass(frozen=True, eq=False)
class Series:
    """T rounds of n clients. ``excluded`` says who stood excluded after each round, asked in it or not.

    ``suspended`` are those of them who may come back, after the last round.
    """

    rounds: NDArray[np.int64]
    clients: tuple[str, ...]
    examples: Grid
    weights: Grid
    flagged: NDArray[np.bool_]
    excluded: NDArray[np.bool_]
    watches: Mapping[str, WatchSeries]
    metrics: Mapping[str, NDArray[np.float64]]
    rejected: tuple[tuple[int, str, Note], ...] = ()
    """(round, client, reason) of every reply that was not let in."""
    notes: tuple[tuple[int, Note], ...] = ()
    suspended: frozenset[str] = frozenset()
    reported: Mapping[str, Grid] = field(default_factory=dict)
    """What clients told of themselves and what was seen of their replies; see :mod:`fedwarden.core.reported`."""

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> Series:
        """From records in the order of their rounds.

        >>> def row(*values): return np.array(values)
        >>> first = RoundRecord(1, ("a", "b"), row(5.0, 5.0), row(0.5, 0.5), flagged=row(False, False))
        >>> second = RoundRecord(2, ("b",), row(5.0), row(0.0), flagged=row(True), excluded=("b",))
        >>> Series.of([first, second]).weights.tolist()
        [[0.5, 0.5], [nan, 0.0]]
        """
        return cls.joined([_of_round(record) for record in records])

    @classmethod
    def joined(cls, parts: Sequence[Series]) -> Series:
        """One run from parts of it, each with rounds that followed."""
        clients = client_order(chain.from_iterable(s.clients for s in parts))
        place, ends = {c: j for j, c in enumerate(clients)}, np.cumsum([0, *map(len, parts)]).tolist()
        where = [np.ix_(range(a, a + len(s)), [place[c] for c in s.clients]) for a, s in zip(ends, parts, strict=False)]

        def grid(found: Iterable[Any], empty: Any = np.nan) -> NDArray[Any]:
            out = np.full((ends[-1], len(clients)), empty)
            for at, values in zip(where, found, strict=True):
                if values is not None:
                    out[at] = values
            return out

        def line(found: Iterable[Any]) -> NDArray[Any]:
            values = (np.full(len(s), np.nan) if v is None else v for s, v in zip(parts, found, strict=True))
            return np.concatenate([np.zeros(0), *values])

        def watch(name: str) -> WatchSeries:
            seen = [s.watches.get(name) for s in parts]
            known = [w for w in seen if w is not None]
            return WatchSeries(
                name,
                grid(w and w.signal for w in seen),
                grid(w and w.scores for w in seen),
                grid((w and w.flagged for w in seen), False),
                line(w and w.threshold for w in seen),
                {t: note for w in known for t, note in w.warnings.items()},
                known[0].words,
            )

        told = Counter[str]()
        for s in parts:
            told.update({name: int(np.isfinite(values).sum()) for name, values in s.reported.items()})
        return cls(
            np.concatenate([np.zeros(0, np.int64), *(s.rounds for s in parts)]),
            clients,
            grid(s.examples for s in parts),
            grid(s.weights for s in parts),
            grid((s.flagged for s in parts), False),
            grid((s.excluded for s in parts), False),
            {name: watch(name) for name in dict.fromkeys(chain.from_iterable(s.watches for s in parts))},
            {k: line(s.metrics.get(k) for s in parts) for k in dict.fromkeys(chain(*(s.metrics for s in parts)))},
            tuple(chain.from_iterable(s.rejected for s in parts)),
            tuple(chain.from_iterable(s.notes for s in parts)),
            next((s.suspended for s in reversed(parts) if len(s)), frozenset()),
            {name: grid(s.reported.get(name) for s in parts) for name in most_told(told)},
        )

    def __len__(self) -> int:
        return len(self.rounds)

    def noted(self, client: str) -> list[int]:
        """The rounds in which a client was flagged or in doubt."""
        flagged = self.rounds[self.flagged[:, self.clients.index(client)]].tolist()
        return sorted({*flagged, *(t for t, note in self.notes if note.kind in DOUBTS and client in note.clients)})

    @cached_property
    def excluded_in(self) -> dict[str, int]:
        """The round since which a client stands excluded, or the first in which it was flagged and had no weight.

        No weight without a flag is no exclusion: an aggregator picks a few clients, and of copies one counts. A client
        in doubt that is skipped in a round is not excluded, and a suspension that is over does not count either.
        """
        refused = {(t, c) for t, c, _ in self.rejected}
        for_the_round = (self.flagged & (self.weights == 0) & ~self.excluded).astype(bool)
        place, row = ({x: i for i, x in enumerate(xs)} for xs in (self.clients, self.rounds.tolist()))
        for t, note in self.notes:
            if note.kind in DOUBTS and t in row:
                for_the_round[row[t], [place[c] for c in note.clients if c in place]] = False
        found = {}
        for j, client in enumerate(self.clients):
            inside = np.flatnonzero(~self.excluded[:, j])
            since = inside[-1] + 1 if len(inside) else 0
            out = np.union1d(np.flatnonzero(for_the_round[:, j]), np.arange(since, len(self)))
            first = next((t for t in self.rounds[out].tolist() if (t, client) not in refused), None)
            if first is not None:
                found[client] = first
        return found


def _of_round(record: RoundRecord) -> Series:
    """A series of one round; of two replies of one client the first counts."""
    names = chain((x.client_id for x in record.rejected), *record.reported.values())
    clients = tuple(dict.fromkeys((*record.client_ids, *record.excluded, *names)))
    place = {c: j for j, c in enumerate(clients)}
    at = [place[c] for c in record.client_ids[::-1]]

    def row(values: NDArray[Any], empty: Any = np.nan) -> NDArray[Any]:
        out = np.full((1, len(clients)), empty)
        if len(values):
            out[0, at] = values[::-1]
        return out

    def told(values: Mapping[str, float]) -> Grid:
        return np.array([[values.get(c, np.nan) for c in clients]], np.float64)

    watches = {}
    for w in record.watches:
        warnings = {record.round: w.warning} if w.warning else {}
        values = row(w.signal), row(w.scores), row(w.flagged, False)
        watches[w.name] = WatchSeries(w.name, *values, np.array([w.threshold]), warnings, w.words)
    return Series(
        np.array([record.round], np.int64),
        clients,
        row(record.num_examples),
        row(record.weights),
        row(record.flagged, False),
        np.array([[c in record.excluded for c in clients]], bool),
        watches,
        {name: np.array([value]) for name, value in record.metrics.items()},
        tuple((record.round, x.client_id, x.reason) for x in record.rejected),
        tuple((record.round, note) for note in record.notes),
        frozenset(record.suspended),
        {name: told(values) for name, values in record.reported.items()},
    )


def most_told(told: Counter[str]) -> list[str]:
    """The names under which most numbers of clients are known: one client with new names all the time fills no memory.

    >>> most_told(Counter({f"x{i}": 1 for i in range(1000)} | {"loss": 9}))[-1], len(most_told(Counter(a=1, b=2)))
    ('loss', 2)
    """
    kept = {name for name, _ in told.most_common(TOLD)}
    return [name for name in told if name in kept]


def columns(series: Series, reported: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """The long table by column: one row per round, watch and client that replied; without a watch if none is set.

    What single clients ``reported`` follows under its own names, such as ``train/loss``, all that the run has by
    default.

    >>> from fedwarden.core.types import RoundRecord
    >>> record = RoundRecord(1, ("a",), np.array([5.0]), np.array([1.0]), flagged=np.array([False]))
    >>> {name: column.tolist() for name, column in columns(Series.of([record])).items() if name in ("client", "weight")}
    {'client': ['a'], 'weight': [1.0]}
    """
    i, j = np.nonzero(~np.isnan(series.weights))
    watches = list(series.watches.values())
    nothing = np.full(len(i), np.nan)
    order = np.argsort(np.tile(i, max(len(watches), 1)), kind="stable")  # by round, then by watch

    def each(of_watch: list[NDArray[Any]], without: NDArray[Any]) -> NDArray[Any]:
        return (np.concatenate(of_watch) if watches else without)[order]

    def again(values: NDArray[Any]) -> NDArray[Any]:
        return np.tile(values, max(len(watches), 1))[order]

    told = {name: series.reported.get(name) for name in (series.reported if reported is None else reported)}
    return {
        "round": again(series.rounds[i]),
        "client": again(np.array(series.clients, dtype=object)[j]),
        "watch": np.repeat(np.array([w.name for w in watches] or [""], dtype=object), len(i))[order],
        "signal": each([w.signal[i, j] for w in watches], nothing),
        "score": each([w.scores[i, j] for w in watches], nothing),
        "threshold": each([w.threshold[i] for w in watches], nothing),
        "flagged": each([w.flagged[i, j] for w in watches], series.flagged[i, j]),
        "weight": again(series.weights[i, j]),
        "examples": again(series.examples[i, j]),
        "excluded": again(series.excluded[i, j]),
        **{name: again(nothing if values is None else values[i, j]) for name, values in told.items()},
    }


def accuracy_words(metrics: Mapping[str, Grid], name: str = "accuracy") -> str:
    """What an accuracy is called: where no server has measured it, it is one of those that clients report.

    >>> accuracy_words({"accuracy": np.array([0.5, 0.6]), "evaluate/acc": np.array([0.5, 0.6])})
    'accuracy, as clients report it'
    >>> accuracy_words({"accuracy": np.array([0.5])})
    'clean accuracy'
    """
    values = metrics[name]
    known = np.isfinite(values)
    same = (np.array_equal(values[known], metrics[k][known]) for k in metrics if k.startswith("evaluate/"))
    if "/" in name or (known.any() and any(same)):
        return "accuracy, as clients report it"
    return "clean accuracy" if name == "accuracy" else name.replace("_", " ")


def client_order(clients: Iterable[str]) -> tuple[str, ...]:
    """Every client once, in the order of a reader: numbers inside names by their size.

    >>> client_order(["10", "9", "node-10", "node-2", "9"])
    ('9', '10', 'node-2', 'node-10')
    """
    return tuple(sorted(set(clients), key=_reading))


def _reading(name: str) -> list[tuple[int, int, str]]:
    pieces = (piece for piece in re.split(r"([0-9]+)", name) if piece)
    digits = ((piece, piece.lstrip("0")) for piece in pieces)  # a longer number is larger; int() refuses very long ones
    return [(0, len(d), d) if piece[0] in "0123456789" else (1, 0, piece) for piece, d in digits]
