"""A run's records told by client, for everything that shows a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.notes import DOUBTS, Note
from ..core.types import RoundRecord
from .explain import Reason, explain
from .ledger import Ledger, Run
from .series import Series
from .verdict import Standing, verdict, verdict_of, why
from .word import NOTES, UNSAID


@dataclass(frozen=True)
class ClientRow:
    """What became of one client; weight, scores and thresholds are those of the last round it took part in."""

    client: str
    rounds: int
    weight: float
    scores: Mapping[str, float]
    thresholds: Mapping[str, float]
    excluded_in: int | None
    reason: Reason | None
    rejected: Mapping[int, Note]
    suspended: bool = False
    standing: Standing | None = None

    @property
    def why(self) -> str:
        """Why it stands as it does; nothing where it is one of many."""
        return "" if self.standing is None else why(self.standing, self.reason)

    @property
    def worst(self) -> str | None:
        """The watch whose limit the client came nearest to, or exceeds most; None where no watch has one."""
        near = self._near()
        return max(near, key=lambda w: near[w]) if near else None

    @property
    def nearness(self) -> float:
        """How near it came to that limit, as a share of it; 0 where there is none."""
        return max(self._near().values(), default=0.0)

    def _near(self) -> dict[str, float]:
        return {
            w: score / self.thresholds[w]
            for w, score in self.scores.items()
            if np.isfinite(score) and np.isfinite(self.thresholds.get(w, np.nan)) and self.thresholds[w] > 0
        }


def client_rows(series: Series, reasons: Mapping[str, Reason] | None = None) -> list[ClientRow]:
    """One entry per client; a round in which its only reply was rejected is not taken part in."""
    place, row = ({x: i for i, x in enumerate(xs)} for xs in (series.clients, series.rounds.tolist()))
    took, gone = ~np.isnan(series.weights), series.excluded_in
    standings = {s.client: s for s in verdict(series).standings}
    rejected: dict[str, dict[int, Note]] = {c: {} for c in series.clients}
    for t, c, reason in series.rejected:
        rejected[c][t] = reason
        took[row[t], place[c]] &= series.weights[row[t], place[c]] > 0
    found = []
    for j, client in enumerate(series.clients):
        seen = np.flatnonzero(took[:, j])
        last = seen[-1] if len(seen) else None
        found.append(
            ClientRow(
                client=client,
                rounds=len(seen),
                weight=0.0 if last is None else float(series.weights[last, j]),
                scores={} if last is None else {w.name: float(w.scores[last, j]) for w in series.watches.values()},
                thresholds={} if last is None else {w.name: float(w.threshold[last]) for w in series.watches.values()},
                excluded_in=gone.get(client),
                reason=(reasons or {}).get(client),
                rejected=rejected[client],
                suspended=client in series.suspended,
                standing=standings.get(client),
            )
        )
    return found


def reasons(records: Sequence[RoundRecord], excluded_in: Mapping[str, int]) -> dict[str, Reason]:
    """Why each client was excluded in its round, and why each other one was in doubt in the last round of doubt."""
    last = {c: r.round for r in records for note in r.notes if note.kind in DOUBTS for c in note.clients}
    rounds = {*excluded_in.values(), *last.values()}
    told = {r.round: {**explain(r), **_by_word(r)} for r in records if r.round in rounds}
    in_doubt = {c: told[t][c] for c, t in last.items() if c in told[t]}
    return in_doubt | {c: told[t].get(c, Reason(flagged=False)) for c, t in excluded_in.items() if t >= last.get(c, 0)}


def _by_word(record: RoundRecord) -> dict[str, Reason]:
    """The clients that the operator excludes in a round, and what was said of them."""
    notes = [note for note in record.notes if note.kind == NOTES["exclude"]]
    return {client: Reason(flagged=False, words=_words(note)) for note in notes for client in note.clients}


def _words(note: Note) -> str:
    """Which operator said so and why; a ledger may come from anywhere.

    >>> _words(Note.of("word_excluded", "a", by="alice", reason="maintenance"))
    'operator alice: maintenance'
    """
    return f"operator {note.values.get('by', 'unknown')}: {note.values.get('reason', UNSAID)}"


def distinct_notes(notes: Iterable[tuple[int, Note]]) -> dict[Note, list[int]]:
    """The first of all notes of (round, note) that have a topic, with the rounds in which the topic came up.

    >>> few, fewer = (Note.of("no_usable_reply", rejected=n) for n in (3, 5))
    >>> {str(note): rounds for note, rounds in distinct_notes([(1, few), (2, fewer)]).items()}
    {'no usable reply (3 rejected); the model is kept': [1, 2]}
    """
    found: dict[Note, tuple[Note, list[int]]] = {}
    for t, note in notes:
        found.setdefault(note.topic, (note, []))[1].append(t)
    return dict(found.values())


def rounds_by_note(notes: Iterable[tuple[int, Note]]) -> dict[Note, list[int]]:
    """Every note of (round, note) once, with its rounds."""
    found: dict[Note, list[int]] = {}
    for t, note in notes:
        found.setdefault(note, []).append(t)
    return found


def brief(ledger: Ledger, run: Run) -> dict[str, Any]:
    """One run in a row; an unfinished one has no summary yet, so its last round speaks for it."""
    accuracy, excluded = run.summary.get("accuracy"), list(run.summary.get("excluded", ()))
    if run.state != "done" and run.rounds:
        last = ledger.record(run.id, ledger.last_round(run.id))
        accuracy, excluded = last.metrics.get("accuracy"), list(last.excluded)
    guard = run.config.get("guard")
    return {
        "run": run.id,
        "name": run.name,
        "created": run.created,
        "state": run.state,
        "engine": run.engine,
        "rounds": run.rounds,
        "of": run.config.get("rounds"),
        "preset": guard.get("preset") if isinstance(guard, dict) else None,
        "accuracy": accuracy,
        "excluded": excluded,
        "verdict": verdict_of(ledger, run).short,
        "error": run.error,
    }
