"""A recorded run as one value: its head, its rounds as arrays, what auditors saw; for notebooks, pages and exports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from sqlite3 import Row
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.errors import require
from ..core.html import facts
from ..core.types import Observation, RoundRecord
from . import cells
from .ledger import Ledger, Run
from .parse import SMALLEST, note_in, numbers_in
from .schema import REMARKS
from .series import Series, WatchSeries, client_order, columns, most_told
from .story import Story
from .word import Said, said_in


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it stood in the ledger when it was read.

    ``observations`` are what each auditor saw, by its name, which may be empty; ``said`` is the operator's word, in the
    order in which it was said. ``story`` tells it client by client, and ``reported`` names what clients reported.
    """

    run: Run
    story: Story
    observations: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    said: tuple[Said, ...] = ()
    reported: tuple[str, ...] = ()

    @classmethod
    def open(cls, which: str | int | None = None, folder: Path | None = None) -> RunRecord:
        """A run by number, by the latest of a name, or the latest of all; ``folder`` is its workspace."""
        with Ledger(folder, read_only=True) as ledger:
            found = cls.read(ledger, which)

        def again(t: int) -> RoundRecord:
            with Ledger(folder, read_only=True) as ledger:
                return ledger.record(found.run.id, t)

        return replace(found, story=replace(found.story, full=again))

    @classmethod
    def read(
        cls,
        ledger: Ledger,
        which: str | int | None = None,
        watches: Collection[str] | None = None,
        reported: Collection[str] | None = None,
        old: RunRecord | None = None,
    ) -> RunRecord:
        """The same from a ledger that is open and stays so, since the story reads single rounds when it needs them.

        Its series has some ``watches`` and some of what clients ``reported``, or all. Where an ``old`` record of the
        same run is given, only later rounds are read, and it is returned where nothing is new.
        """
        with ledger.snapshot():
            run = ledger.run(which)
            seen = {who: tuple(ledger.observations(run.id, who)) for who in ledger.observers(run.id)}
            said, told = tuple(said_in(ledger, run.id)), most_told(ledger.reported(run.id))
            names = ledger.watches(run.id)
            shown = [name for name in names if watches is None or name in watches]
            past = old.series if old is not None and old.run.identity == run.identity and len(old.series) else None
            after = 0 if past is None else int(past.rounds[-1])
            series = read_series(ledger, run.id, after, shown, told if reported is None else reported)
            if past is not None and old is not None:
                if not len(series) and (run, seen, said) == (old.run, old.observations, old.said):
                    return old
                series = Series.joined([past, series]) if len(series) else past
            story = Story(series, partial(ledger.record, run.id), names)
            return cls(run, story, seen, said, tuple(told))

    @property
    def series(self) -> Series:
        """Its rounds as arrays."""
        return self.story.series

    def to_frame(self) -> Any:
        """A pandas frame with one row per round, client and watch: signal, score, threshold, flagged, weight, ..."""
        return require("pandas", "dashboard", "a frame").DataFrame(columns(self.series))

    def plot(
        self, watch: str | None = None, client: str | None = None, scale: str = "limit", dark: bool = False
    ) -> Any:
        """A Plotly figure: accuracy and loss, a watch's scores, or a client; scale: limit, linear, log or robust z."""
        return import_module("fedwarden.figures.guard").draw(self.story, watch, client, scale, dark)

    def _repr_html_(self) -> str:
        story, known = self.story, self.story.metric("accuracy")
        told = {
            "state": self.run.state_in_words,
            "rounds": f"{len(self.series)} of {self.run.config.get('rounds', '?')}",
            "clients": len(self.series.clients),
            "watches": ", ".join(self.series.watches) or "none",
            "accuracy": f"{known[-1]:.1%}" if len(known) else "-",
            "verdict": str(story),
            **{f"client {who}, {standing}": str(story.reason(who)) for who, standing in story.standings.items()},
        }
        return facts(told, f"run {self.run.id}: {self.run.name}")


LAST = 200  # rounds that a list of runs tells of


def brief(ledger: Ledger, run: Run) -> dict[str, Any]:
    """One run in a row, from its last rounds; an unfinished one has no summary, so the last of them speaks for it."""
    accuracy, excluded = run.summary.get("accuracy"), list(run.summary.get("excluded", ()))
    judged = tuple(row["watch"] for row in ledger.rows("watch", run.id, "LIMIT 1", of="watch"))
    series = read_series(ledger, run.id, max(ledger.last_round(run.id) - LAST, 0), (), ())
    story = Story(series, partial(ledger.record, run.id), judged)
    if run.state != "done" and run.rounds:
        told = story.series.metrics.get("accuracy")
        accuracy, excluded = None if told is None else float(told[-1]), [c for c, s in story.standings.items() if s.out]
    guard = run.config.get("guard")
    return {
        "run": run.id,
        "name": run.name,
        "created": run.created,
        "state": run.state,
        "state_in_words": run.state_in_words,
        "committed": run.committed,
        "engine": run.engine,
        "rounds": run.rounds,
        "of": None if "verdict" in run.summary else run.config.get("rounds"),
        "preset": guard.get("preset") if isinstance(guard, dict) else None,
        "accuracy": accuracy,
        "excluded": excluded,
        "verdict": str(run.summary.get("verdict") or story.short),
        "error": run.error,
    }


Read = Callable[[Sequence[Row], str, int], NDArray[Any]]
"""Reads a column of rows that have a cell for each of so many clients."""


def read_series(
    ledger: Ledger,
    run: int,
    after: int = 0,
    watches: Collection[str] | None = None,
    reported: Collection[str] | None = None,
) -> Series:
    """The rounds of a run after one of them, with some of its ``watches`` and some of what is ``reported``, or all.

    They are read by column and no record is made of a round, so that a long run costs little.
    """
    tail, first = "AND round >= ? ORDER BY round", after + 1 if after else SMALLEST  # what is below 1 is damage
    heads = ledger.rows("round", run, tail, first)
    remarks = ledger.rows("remark", run, f"{tail}, position", first)
    seen = {w: ledger.rows("watch", run, f"AND watch = ? {tail}", w, first,
                           of="round, threshold, warning, flagged, signal, score")
            for w in (ledger.watches(run) if watches is None else watches)}  # fmt: skip
    names = most_told(ledger.reported(run)) if reported is None else reported
    told = {name: ledger.rows("report", run, f"AND name = ? {tail}", name, first) for name in names}
    clients_of = cache(lambda column, packed: ledger.clients(run, column, packed))
    row, asked, gone, metrics = dict[int, int](), list[tuple[str, ...]](), list[tuple[str, ...]](), []
    suspended: tuple[str, ...] = ()
    for i, head in enumerate(heads):
        with ledger.reading(f"run {run}, round {head['round']}"):
            row[cells.whole(head, "round", 1)] = i
            cells.moment(head, "finished")
            asked.append(clients_of("clients", head["clients"]))
            gone.append(clients_of("excluded", head["excluded"]))
            suspended = clients_of("suspended", head["suspended"])
            metrics.append(numbers_in(head, "metrics"))
    for table, found in (
        ("remark", remarks),
        *(("watch", r) for r in seen.values()),
        *(("report", r) for r in told.values()),
    ):
        if lost := {r["round"] for r in found} - row.keys():
            raise ledger.damaged(f"run {run}: table {table} has round {min(lost)}, which is not there")
    rejected, notes = list[tuple[int, str, Any]](), list[tuple[int, Any]]()
    for remark in remarks:
        t = remark["round"]
        with ledger.reading(f"run {run}, round {t}"):
            if cells.word(remark, "about", REMARKS) == "note":
                notes.append((t, note_in(remark, "note")))
            else:
                rejected.append((t, cells.text(remark, "client"), note_in(remark, "note")))
    with ledger.reading(f"run {run}, table report"):
        answered = {name: [clients_of("clients", r["clients"]) for r in found] for name, found in told.items()}
    groups = {id(ids): ids for some in (asked, gone, *answered.values()) for ids in some}
    clients = client_order({c for _, c, _ in rejected}.union(*groups.values()))
    place, shape = {c: j for j, c in enumerate(clients)}, (len(heads), len(clients))
    places = cache(lambda ids: [place[c] for c in ids[::-1] if c in place])  # of two replies the first counts

    def grid(rows: Sequence[Row], of: Sequence[tuple[str, ...]], column: str, read: Read, empty: Any) -> NDArray[Any]:
        """Rows that have the same clients are read together."""
        out, same = np.full(shape, empty), dict[int, tuple[tuple[str, ...], list[Row]]]()
        for r, ids in zip(rows, of, strict=True):
            same.setdefault(id(ids), (ids, []))[1].append(r)
        for ids, some in same.values():
            try:
                values = read(some, column, len(ids))
            except cells.Damaged:
                for r in some:
                    with ledger.reading(f"run {run}, round {r['round']}"):
                        read([r], column, len(ids))
                raise
            out[np.ix_([row[r["round"]] for r in some], places(ids))] = values[:, ::-1]
        return out

    def watch(name: str, rows: Sequence[Row]) -> WatchSeries:
        of, limits = [asked[row[r["round"]]] for r in rows], np.full(len(heads), np.nan)
        warnings = {}
        for r in rows:
            with ledger.reading(f"run {run}, round {r['round']}"):
                limits[row[r["round"]]] = cells.real(r, "threshold", np.inf)
                if r["warning"] is not None:
                    warnings[r["round"]] = note_in(r, "warning")
        (first_row,) = ledger.rows("watch", run, "AND watch = ? AND round = ?", name, rows[0]["round"], of="words")
        with ledger.reading(f"run {run}, table watch"):
            words = cells.text(first_row, "words")
        signal, scores = (grid(rows, of, column, cells.vectors, np.nan) for column in ("signal", "score"))
        flagged = grid(rows, of, "flagged", cells.masks, False)
        return WatchSeries(name, signal, scores, flagged, limits, warnings, words)

    excluded = np.zeros(shape, bool)
    for i, ids in enumerate(gone):
        excluded[i, places(ids)] = True
    return Series(
        np.array([*row], np.int64),
        clients,
        grid(heads, asked, "num_examples", cells.vectors, np.nan),
        grid(heads, asked, "weights", cells.vectors, np.nan),
        grid(heads, asked, "flagged", cells.masks, False),
        excluded,
        {name: watch(name, rows) for name, rows in seen.items() if rows},
        {k: np.array([m.get(k, np.nan) for m in metrics]) for k in dict.fromkeys(k for m in metrics for k in m)},
        tuple(rejected),
        tuple(notes),
        frozenset(suspended),
        {name: grid(rows, answered[name], "content", cells.vectors, np.nan) for name, rows in told.items() if rows},
    )
