"""A run's records told by client, for everything that shows a run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.types import RoundRecord
from .ledger import Ledger, Run


@dataclass(frozen=True)
class ClientDigest:
    """What became of one client; weight, scores and thresholds are those of the last round it took part in."""

    client: str
    rounds: int
    weight: float
    scores: Mapping[str, float]
    thresholds: Mapping[str, float]
    excluded_in: int | None
    reason: str
    rejected: Mapping[int, str]


def digest(records: Sequence[RoundRecord]) -> list[ClientDigest]:
    """One entry per client, in order of appearance; a round in which its reply was rejected is not taken part in."""
    places: dict[str, list[tuple[RoundRecord, int]]] = {}
    rejected: dict[str, dict[int, str]] = {}
    for record in records:
        refused = {r.client_id for r in record.rejected}
        for rejection in record.rejected:
            places.setdefault(rejection.client_id, [])
            rejected.setdefault(rejection.client_id, {})[record.round] = rejection.reason
        for i, client in enumerate(record.client_ids):
            judged = not any(np.isnan(w.signal[i]) for w in record.watches) if record.watches else client not in refused
            places.setdefault(client, []).extend([(record, i)] if judged else [])
    return [_client(client, seen, rejected.get(client, {})) for client, seen in places.items()]


def why(record: RoundRecord, position: int) -> str:
    """What flagged a client in a round: each watch with the score and the threshold it exceeded."""
    flags = [f"{w.name} {w.scores[position]:.4g} > {w.threshold:.4g}" for w in record.watches if w.flagged[position]]
    return ", ".join(flags) or "weight 0 without a flag"


def distinct_notes(records: Sequence[RoundRecord], key: Callable[[str], str] = str) -> dict[str, list[int]]:
    """Every note once, with the rounds it was made in; of notes with the same key, the first."""
    first: dict[str, str] = {}
    rounds: dict[str, list[int]] = {}
    for record in records:
        for note in record.notes:
            rounds.setdefault(first.setdefault(key(note), note), []).append(record.round)
    return rounds


def note_kind(note: str) -> str:
    """What a note is about: those that differ only in numbers are of one kind, unless they speak of a client.

    >>> note_kind("at most 3 of 20 can be flagged") == note_kind("at most 2 of 17 can be flagged")
    True
    """
    return note if note.startswith("client ") else re.sub(r"\d+(\.\d+)?", "#", note)


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
    }


def _client(client: str, seen: Sequence[tuple[RoundRecord, int]], rejected: Mapping[int, str]) -> ClientDigest:
    left_out = next(((r, i) for r, i in seen if r.weights[i] == 0 or client in r.excluded), None)
    last, at = seen[-1] if seen else (None, 0)
    watches = last.watches if last else ()
    return ClientDigest(
        client=client,
        rounds=len(seen),
        weight=float(last.weights[at]) if last else 0.0,
        scores={w.name: float(w.scores[at]) for w in watches},
        thresholds={w.name: w.threshold for w in watches},
        excluded_in=left_out[0].round if left_out else None,
        reason=why(*left_out) if left_out else "",
        rejected=rejected,
    )
