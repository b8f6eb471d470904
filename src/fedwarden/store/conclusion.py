"""How a run ended for each client, and how it ended for attackers and honest clients: for ``fedwarden run --json``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..core.notes import DOUBTS
from ..core.types import RoundRecord
from ..core.words import listed
from .different import RECENT, harm_not_shown
from .explain import explain
from .overview import client_rows, reasons
from .series import Series, client_order
from .verdict import COPIES, acting_as_one

State = Literal["in the model", "down-weighted", "skipped", "on trial", "suspended", "excluded", "rejected"]

OUT: tuple[State, ...] = ("suspended", "excluded")
LATE = 5  # rounds at the end of a run over which its late accuracy is averaged
ALIKE = 0.05  # clients whose weights differ by less are weighed alike
LESS = 0.5  # of what the median client in the model counts: a client that counts less is down-weighted


@dataclass(frozen=True)
class Ended:
    """How the run ended for one client; ``reason`` is a sentence, or empty, and ``weight`` that of its last round."""

    state: State
    reason: str
    weight: float


def _groups(record: RoundRecord) -> list[tuple[str, ...]]:
    """The groups of clients that sent identical updates in a round."""
    return [client_order(note.clients) for note in record.notes if note.kind in COPIES]


def in_the_model(record: RoundRecord) -> set[str]:
    """The clients whose update is in the model of a round: by a weight of its own, or of an identical update."""
    inside = {c for c, weight in zip(record.client_ids, record.weights, strict=True) if weight > 0}
    return inside.union(*(group for group in _groups(record) if inside & set(group)))


def presence(records: Sequence[RoundRecord]) -> dict[str, list[bool]]:
    """For each client whether it was in the model, in every round that asked it.

    A client that is excluded for good is not asked any more; every round from then on counts as one outside.
    """
    inside: dict[str, list[bool]] = {}
    for record in records:
        there = in_the_model(record)
        gone = set(record.excluded) - set(record.suspended)
        asked = {*record.client_ids, *(rejection.client_id for rejection in record.rejected)}
        for client in asked | gone:
            inside.setdefault(client, []).append(client in there)
    return inside


def mostly_out(records: Sequence[RoundRecord], recent: int = RECENT) -> set[str]:
    """The clients that were in the model in fewer than half of the last ``recent`` rounds that asked them."""
    last = {client: rounds[-recent:] for client, rounds in presence(records).items()}
    return {client for client, rounds in last.items() if 2 * sum(rounds) < len(rounds)}


def ended(records: Sequence[RoundRecord]) -> dict[str, Ended]:
    """How the run ended for every client that was in it, from the last round that each took part in."""
    if not records:
        return {}
    last: dict[str, RoundRecord] = {}
    for record in records:
        last |= dict.fromkeys((*record.client_ids, *(r.client_id for r in record.rejected)), record)
    series, final = Series.of(records), records[-1]
    rows = {row.client: row for row in client_rows(series, reasons(records, series.excluded_in))}
    found = {}
    for client in client_order({*last, *final.excluded}):
        record = last.get(client, final)
        state, reason = _state(client, record, final)
        place = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
        weight = 0.0 if state in ("excluded", "rejected") else float(place.get(client, 0.0))
        row = rows.get(client)
        told = _sentence(reason or (row.why if row and state in OUT else ""))
        unlike = row.standing.different if row and row.standing else None
        also = "" if unlike is None else harm_not_shown(client, unlike)
        found[client] = Ended(state, " ".join(filter(None, [told, also])), weight)
    return found


def conclusion(records: Sequence[RoundRecord], attackers: Collection[str]) -> dict[str, Any]:
    """A run in the terms of ``fedwarden run --json``; ``attackers`` are known where the run was a simulation.

    ``caught`` are the attackers, and ``honest_out`` the honest clients, that were in the model in fewer than half of
    the last ten rounds that asked them.
    """
    out = mostly_out(records)
    told = [r.metrics["accuracy"] for r in records if "accuracy" in r.metrics]
    return {
        "clients": {
            client: {"state": end.state, "reason": end.reason, "weight": end.weight}
            for client, end in ended(records).items()
        },
        "accuracy": told[-1] if told else None,
        "late_accuracy": float(np.mean(told[-LATE:])) if told else None,
        "attack_success": records[-1].metrics.get("attack_success") if records else None,
        "attackers": list(client_order(attackers)),
        "caught": list(client_order(out & set(attackers))),
        "honest_out": list(client_order(out - set(attackers))),
        "acting_as_one": [list(group) for group in acting_as_one([(r.round, n) for r in records for n in r.notes])],
    }


def _state(client: str, record: RoundRecord, final: RoundRecord) -> tuple[State, str]:
    """A client's state by the last round that it took part in and the last of all, and what that round says of it."""
    if client in final.excluded:
        return ("suspended" if client in final.suspended else "excluded"), ""
    for rejection in record.rejected:
        if rejection.client_id == client:
            return "rejected", f"its last reply was rejected: {rejection.reason}"
    noted = {note.kind: note for note in record.notes if client in note.clients}
    for kind in DOUBTS.keys() & noted.keys():
        words = str(noted[kind].values.get("words", noted[kind]))
        return DOUBTS[kind], str(explain(record).get(client, words))
    if client not in in_the_model(record):
        return "skipped", str(explain(record).get(client, "the aggregator left its update out"))
    if "down_weighted" in noted:
        return "down-weighted", str(noted["down_weighted"])
    weights = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
    if "copies_share" in noted or weights[client] == 0:
        group = next(group for group in _groups(record) if client in group)
        others = [other for other in group if other != client]
        return "in the model", f"it shares one vote with {listed(others)}, since their updates are identical"
    less = _share_of_median(record, client)
    if less < LESS:
        return "down-weighted", f"its update counts {less:.2g} times as much as that of the median client"
    return "in the model", ""


def _share_of_median(record: RoundRecord, client: str) -> float:
    """How much a client counts compared with the median client in the model.

    Weights are compared as they are or by example, whichever way most clients count alike: an aggregator may weigh all
    clients the same, or by their examples.
    """
    inside = record.weights > 0
    place = record.client_ids.index(client)
    ways = []
    for each in (record.weights, record.weights / np.maximum(record.num_examples, 1e-300)):
        middle = float(np.median(each[inside]))
        unlike = np.abs(each[inside] / middle - 1) > ALIKE
        ways.append((int(unlike.sum()), float(each[place]) / middle))
    return min(ways)[1]


def _sentence(words: str) -> str:
    """Words as a sentence.

    >>> _sentence("it stood out"), _sentence("")
    ('It stood out.', '')
    """
    return f"{words[0].upper()}{words[1:].rstrip('.')}." if words else ""
