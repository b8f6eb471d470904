"""One run in a row, for lists of runs: read without its scores."""

from __future__ import annotations

from typing import Any

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
    flags = ledger.query(
        """SELECT round.round, json_extract(clients, '$[' || each.value || ']') AS client,
            json_extract(weights, '$[' || each.value || ']') AS weight
        FROM round, json_each(round.flagged) AS each WHERE run = ?""",
        run.id,
    )
    doubts = ledger.query(
        """SELECT round, each.value AS client, json_extract(note, '$.kind') AS kind
        FROM remark JOIN round USING (run, round), json_each(note, '$.clients') AS each
        WHERE run = ? AND about = 'note' AND json_extract(note, '$.kind') IN (?, ?)
            AND each.value IN (SELECT value FROM json_each(round.clients))""",  # and not the name of a group
        run.id,
        *DOUBTS,
    )
    flagged: dict[str, dict[int, bool]] = {}
    kinds: dict[str, dict[int, str]] = {}
    for row in flags:
        flagged.setdefault(row["client"], {})[row["round"]] = row["weight"] == 0
    for row in doubts:
        kinds.setdefault(row["client"], {})[row["round"]] = row["kind"]
    last = ledger.record(run.id, ledger.last_round(run.id))
    out: dict[str, State] = {c: "suspended" if c in last.suspended else "excluded" for c in last.excluded}
    return [
        Standing.of(client, flagged.get(client, {}), kinds.get(client, {}), out.get(client), None)
        for client in dict.fromkeys([*out, *flagged, *kinds])
    ]
