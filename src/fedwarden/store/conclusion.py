"""How a run ended for each client, and how it ended for attackers and honest clients: for ``fedwarden run --json``."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..core.types import RoundRecord
from .round import OUT, RoundStory
from .series import client_order
from .story import RECENT, Story

LATE = 5  # rounds at the end of a run over which its late accuracy is averaged


def presence(records: Sequence[RoundRecord]) -> dict[str, list[bool]]:
    """For each client whether it was in the model, in every round that asked it.

    A client that is excluded for good is not asked any more; every round from then on counts as one outside.
    """
    inside: dict[str, list[bool]] = {}
    for record in records:
        there = RoundStory(record).inside
        gone = set(record.excluded) - set(record.suspended)
        asked = {*record.client_ids, *(rejection.client_id for rejection in record.rejected)}
        for client in asked | gone:
            inside.setdefault(client, []).append(client in there)
    return inside


def mostly_out(records: Sequence[RoundRecord], recent: int = RECENT) -> set[str]:
    """The clients that were in the model in fewer than half of the last ``recent`` rounds that asked them."""
    last = {client: rounds[-recent:] for client, rounds in presence(records).items()}
    return {client for client, rounds in last.items() if 2 * sum(rounds) < len(rounds)}


def conclusion(story: Story, attackers: Collection[str]) -> dict[str, Any]:
    """A run in the terms of ``fedwarden run --json``; ``attackers`` are known where the run was a simulation.

    ``caught`` are the attackers, and ``honest_out`` the honest clients, that were in the model in fewer than half of
    the last ten rounds that asked them.
    """
    out = mostly_out([story.rounds(t) for t in story.series.rounds.tolist()])
    told, success = (story.metric(name) for name in ("accuracy", "attack_success"))
    return {
        "clients": {
            client: {"state": ended.state, "reason": story.sentence(client), "weight": ended.weight}
            for client, ended in story.clients.items()
            if ended.last or ended.state in OUT
        },
        "accuracy": told[-1] if len(told) else None,
        "late_accuracy": float(np.mean(told[-LATE:])) if len(told) else None,
        "attack_success": success[-1] if len(success) else None,
        "attackers": list(client_order(attackers)),
        "caught": list(client_order(out & set(attackers))),
        "honest_out": list(client_order(out - set(attackers))),
        "acting_as_one": [list(group) for group in story.as_one],
    }
