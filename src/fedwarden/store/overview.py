"""One run in a row, for lists of runs: read without its scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.notes import DOUBTS
from .ledger import Ledger, Run
from .round import State
from .story import Standing, in_short


def brief(ledger: Ledger, run: Run) -> dict[str, Any]:
    """One run in a row; an unfinished one has no summary yet, so its last round speaks for it."""
    accuracy, excluded = run.summary.get("accuracy"), list(run.summary.get("excluded", ()))
    last = ledger.record(run.id, ledger.last_round(run.id)) if run.rounds else None
    if run.state != "done" and last is not None:
        accuracy, excluded = last.metrics.get("accuracy"), list(last.excluded)
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
        "of": run.config.get("rounds"),
        "preset": guard.get("preset") if isinstance(guard, dict) else None,
        "accuracy": accuracy,
        "excluded": excluded,
        "verdict": in_short(standings(ledger, run), last is not None and bool(last.watches)),
        "error": run.error,
    }


def standings(ledger: Ledger, run: Run) -> list[Standing]:
    """The clients that are worth a word, by what a run's flags and notes say; of those out, not since when."""
    if not run.rounds:
        return []
    flagged: dict[str, dict[int, bool]] = {}
    kinds: dict[str, dict[int, str]] = {}
    for record in ledger.records(run.id, watches=(), reported=()):
        for i in np.flatnonzero(record.flagged).tolist():
            flagged.setdefault(record.client_ids[i], {})[record.round] = bool(record.weights[i] == 0)
        for note in record.notes:
            for client in note.clients if note.kind in DOUBTS else ():
                if client in record.client_ids:  # and not the name of a group
                    kinds.setdefault(client, {})[record.round] = note.kind
    last = ledger.record(run.id, ledger.last_round(run.id))
    out: dict[str, State] = {c: "suspended" if c in last.suspended else "excluded" for c in last.excluded}
    return [
        Standing.of(client, flagged.get(client, {}), kinds.get(client, {}), out.get(client), None)
        for client in dict.fromkeys([*out, *flagged, *kinds])
    ]
