"""A run as arrays, rounds x clients: what everything that draws, compares or exports a run works on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    def of(cls, records: Sequence[RoundRecord], known: Sequence[str] = ()) -> Series:
        """From records in the order of their rounds; ``known`` clients have a column even if no record has them.

        >>> def row(*values): return np.array(values)
        >>> first = RoundRecord(1, ("a", "b"), row(5.0, 5.0), row(0.5, 0.5), flagged=row(False, False))
        >>> second = RoundRecord(2, ("b",), row(5.0), row(0.0), flagged=row(True), excluded=("b",))
        >>> Series.of([first, second]).weights.tolist()
        [[0.5, 0.5], [nan, 0.0]]
        """
        asked = {id(r.client_ids): r.client_ids for r in records}  # most rounds have the clients of the one before
        named = {*known, *chain(*asked.values())}
        for record in records:  # one that is only named as excluded is not among them
            named.update((x.client_id for x in record.rejected), *record.reported.values())
        clients = client_order(named)
        place = {c: j for j, c in enumerate(clients)}
        shape = (len(records), len(clients))
        places = {key: np.array([place[c] for c in ids[::-1]], int) for key, ids in asked.items()}
        where = [places[id(r.client_ids)] for r in records]

        def grid(rows: Sequence[Any], empty: Any, dtype: Any = np.float64) -> NDArray[Any]:
            out = np.full(shape, empty, dtype)
            for i, (row, at) in enumerate(zip(rows, where, strict=True)):
                if row is not None and len(row):
                    out[i, at] = row[::-1]  # of two replies of one client the first counts
            return out

        excluded = np.zeros(shape, bool)
        for i, record in enumerate(records):
            excluded[i, [place[c] for c in record.excluded if c in place]] = True
        watches = {}
        for name in dict.fromkeys(w.name for r in records for w in r.watches):
            seen = [next((w for w in r.watches if w.name == name), None) for r in records]
            watches[name] = WatchSeries(
                name,
                grid([w and w.signal for w in seen], np.nan),
                grid([w and w.scores for w in seen], np.nan),
                grid([w and w.flagged for w in seen], False, np.bool_),
                np.array([np.nan if w is None else w.threshold for w in seen]),
                {r.round: w.warning for r, w in zip(records, seen, strict=True) if w is not None and w.warning},
                next(w.words for w in seen if w is not None),
            )
        names = dict.fromkeys(name for r in records for name in r.metrics)
        told = Counter[str]()
        for record in records:
            told.update({name: len(values) for name, values in record.reported.items()})
        reported = {name: np.full(shape, np.nan) for name in most_told(told)}
        for i, (record, at) in enumerate(zip(records, where, strict=True)):
            for name, grid_of in reported.items():
                values = record.reported.get(name, {})
                same = tuple(values) == record.client_ids
                grid_of[i, at[::-1] if same else [place[c] for c in values]] = [*values.values()]
        return cls(
            np.array([r.round for r in records], dtype=np.int64),
            clients,
            grid([r.num_examples for r in records], np.nan),
            grid([r.weights for r in records], np.nan),
            grid([r.flagged for r in records], False, np.bool_),
            excluded,
            watches,
            {name: np.array([r.metrics.get(name, np.nan) for r in records]) for name in names},
            tuple((r.round, x.client_id, x.reason) for r in records for x in r.rejected),
            tuple((r.round, note) for r in records for note in r.notes),
            frozenset(records[-1].suspended if records else ()),
            reported,
        )

    def then(self, records: Sequence[RoundRecord]) -> Series:
        """This run with the rounds that followed, without reading the earlier ones again.

        >>> def row(*values): return np.array(values)
        >>> first = Series.of([RoundRecord(1, ("a",), row(5.0), row(1.0), flagged=row(False), metrics={"loss": 2.0})])
        >>> grown = first.then([RoundRecord(2, ("b",), row(5.0), row(0.5), flagged=row(False))])
        >>> grown.weights.tolist(), grown.metrics["loss"].tolist()
        ([[1.0, nan], [nan, 0.5]], [2.0, nan])
        """
        later = Series.of(records, self.clients)
        place = {c: j for j, c in enumerate(later.clients)}
        columns = [place[c] for c in self.clients]

        def line(first: Any, second: Any) -> NDArray[Any]:
            ends = ((first, len(self)), (second, len(later)))
            return np.concatenate([np.full(n, np.nan) if values is None else values for values, n in ends])

        def stack(first: Any, second: Any, empty: Any = np.nan) -> NDArray[Any]:
            wide = [np.full((len(s), len(place)), empty) for s in (self, later)]
            if first is not None:
                wide[0][:, columns] = first
            return np.concatenate([wide[0], wide[1] if second is None else second])

        def watch(name: str) -> WatchSeries:
            a, b = self.watches.get(name), later.watches.get(name)
            return WatchSeries(
                name,
                stack(a and a.signal, b and b.signal),
                stack(a and a.scores, b and b.scores),
                stack(a and a.flagged, b and b.flagged, False),
                line(a and a.threshold, b and b.threshold),
                {**(a.warnings if a else {}), **(b.warnings if b else {})},
                a.words if a else b.words if b else "",
            )

        told = Counter[str]()
        for series in (self, later):
            told.update({name: int(np.isfinite(values).sum()) for name, values in series.reported.items()})
        return Series(
            np.concatenate([self.rounds, later.rounds]),
            later.clients,
            stack(self.examples, later.examples),
            stack(self.weights, later.weights),
            stack(self.flagged, later.flagged, False),
            stack(self.excluded, later.excluded, False),
            {name: watch(name) for name in dict.fromkeys([*self.watches, *later.watches])},
            {
                k: line(self.metrics.get(k), later.metrics.get(k))
                for k in dict.fromkeys([*self.metrics, *later.metrics])
            },
            self.rejected + later.rejected,
            self.notes + later.notes,
            later.suspended if len(later) else self.suspended,
            {k: stack(self.reported.get(k), later.reported.get(k)) for k in most_told(told)},
        )

    def __len__(self) -> int:
        return len(self.rounds)

    @property
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
            rounds = [int(t) for t in self.rounds[out] if (int(t), client) not in refused]
            if rounds:
                found[client] = rounds[0]
        return found


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
