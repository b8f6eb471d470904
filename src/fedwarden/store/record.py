"""A recorded run as one value: its head, its rounds as arrays, what auditors saw; for notebooks, pages and exports."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.series import Series, WatchSeries, client_order
from ..core.types import Observation
from .ledger import Ledger, Run


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it stood in the ledger when it was read."""

    run: Run
    series: Series
    observations: tuple[Observation, ...] = ()

    @classmethod
    def open(cls, which: str | int | None = None, folder: Path | None = None) -> RunRecord:
        """A run by number, by the latest of a name, or the latest of all; ``folder`` is its workspace."""
        with Ledger(folder, read_only=True) as ledger, ledger.snapshot():
            run = ledger.run(which)
            return cls(run, read_series(ledger, run.id), tuple(ledger.observations(run.id)))


def read_series(ledger: Ledger, run: int, watches: Collection[str] | None = None, after: int = 0) -> Series:
    """The rounds of a run after one of them, with some of its watches or all; one pass over each table.

    The same as ``Series.of(ledger.records(run))``, many times faster. Rows are taken backwards, so that of two
    replies of one client in a round the first counts, as it does for the warden.
    """
    heads = ledger.table(run, "round", ("round", "excluded"), "AND round > ? ORDER BY round", after)
    rounds = np.array([t for t, _ in heads], dtype=np.int64)
    fields: tuple[str, ...] = ("round", "client", "num_examples", "weight", "flagged")
    rows = ledger.table(run, "client", fields, "AND round > ? ORDER BY round, position", after)[::-1]
    fields = ("round", "kind", "client", "text")
    remarks = ledger.table(run, "remark", fields, "AND round > ? ORDER BY round, position", after)
    names = [c for _, c, *_ in rows]
    clients = client_order([*names, *(c for _, kind, c, _ in remarks if kind == "rejected")])
    place = {c: j for j, c in enumerate(clients)}
    i = np.searchsorted(rounds, np.fromiter((row[0] for row in rows), np.int64, len(rows)))
    j = np.fromiter((place[c] for c in names), np.int64, len(rows))
    shape = (len(rounds), len(clients))

    def grid(column: Sequence[Any], empty: Any = np.nan, dtype: Any = np.float64) -> NDArray[Any]:
        out = np.full(shape, empty, dtype)
        out[i, j] = np.array(column, dtype=dtype)
        return out

    excluded = np.zeros(shape, bool)
    for k, (_, gone) in enumerate(heads):
        excluded[k, [place[c] for c in json.loads(gone) if c in place]] = True
    _, _, examples, weights, flagged = zip(*rows, strict=True) if rows else ((),) * 5
    metrics: dict[str, NDArray[np.float64]] = {}
    for t, name, value in ledger.table(run, "metric", ("round", "name", "value"), "AND round > ?", after):
        column = metrics.setdefault(name, np.full(len(rounds), np.nan))
        column[np.searchsorted(rounds, t)] = np.nan if value is None else value
    return Series(
        rounds,
        clients,
        grid(examples),
        grid(weights),
        grid(flagged, False, np.bool_),
        excluded,
        {
            name: _watch(ledger, run, name, after, rounds, i, j, shape)
            for name in watch_names(ledger, run, after)
            if watches is None or name in watches
        },
        metrics,
        tuple((t, c, text) for t, kind, c, text in remarks if kind == "rejected"),
        tuple((t, text) for t, kind, _, text in remarks if kind == "note"),
    )


def watch_names(ledger: Ledger, run: int, after: int = 0) -> tuple[str, ...]:
    """The watches of a run in their order."""
    found = ledger.table(run, "watch", ("watch", "MIN(position)"), "AND round > ? GROUP BY watch ORDER BY 2", after)
    return tuple(name for name, _ in found)


def _watch(
    ledger: Ledger,
    run: int,
    name: str,
    after: int,
    rounds: NDArray[np.int64],
    i: NDArray[np.int64],
    j: NDArray[np.int64],
    shape: tuple[int, int],
) -> WatchSeries:
    """Scores lie in the order of their rounds and positions, as the clients do; both backwards, see read_series."""
    fields: tuple[str, ...] = ("round", "threshold", "warning", "words")
    heads = ledger.table(run, "watch", fields, "AND watch = ? AND round > ? ORDER BY round", name, after)
    fields = ("signal", "score", "flagged")
    scores = ledger.table(run, "score", fields, "AND watch = ? AND round > ? ORDER BY round, position", name, after)[
        ::-1
    ]
    at = np.searchsorted(rounds, [t for t, *_ in heads])
    there = np.isin(i, at)  # rounds in which this watch had nothing to see have no scores
    threshold = np.full(len(rounds), np.nan)
    threshold[at] = [np.inf if h[1] is None else h[1] for h in heads]
    signal, score, flagged = (np.full(shape, e, t) for e, t in ((np.nan, float), (np.nan, float), (False, bool)))
    for out, column in zip((signal, score, flagged), zip(*scores, strict=True), strict=False):
        out[i[there], j[there]] = np.array(column, dtype=out.dtype)
    words = heads[0][3] if heads else ""
    return WatchSeries(name, signal, score, flagged, threshold, {t: w for t, _, w, _ in heads if w}, words)
