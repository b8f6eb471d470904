"""How a run ended for each client, and how it ended for attackers and honest clients: for ``fedwarden run --json``."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from ..core.types import Observation, RoundRecord
from ..core.words import count, listed
from .round import OUT, RoundStory
from .series import client_order
from .story import GROUPS, RECENT, Story

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


def fates(story: Story, attackers: Collection[str], all_known: bool = True) -> list[str]:
    """What became of the attackers and, if ``all_known``, of the honest clients, and in how many rounds they missed.

    >>> flags = np.array([True, False])
    >>> rounds = [RoundRecord(t, ("a", "b"), np.ones(2), np.array([t - 1.0, 1.0]), flagged=flags) for t in (1, 2)]
    >>> fates(Story.of(rounds), {"a"})
    ['1 attacker: 1 skipped, in 1 round.', '1 honest client: none flagged.']
    """
    honest, told = set(story.series.clients if all_known else ()).difference(attackers), []
    for kind, clients in (("attacker", set(attackers)), ("honest client", honest)):
        parts = []
        for group in GROUPS:
            mine = [s for s in story.standings.values() if s.client in clients and s.group == group]
            missed = 0 if group in OUT else sum(s.skipped for s in mine)
            rounds = f", {'skipped ' * (group != 'skipped')}in {count(missed, 'round')}" if missed else ""
            kept = " and kept in the model" if group == "flagged" else ""
            parts += [f"{len(mine)} {group}{kept}{rounds}"] if mine else []
        told += [f"{count(len(clients), kind)}: {'; '.join(parts) or 'none flagged'}."] if clients else []
    return told


def conclusion(story: Story, attackers: Collection[str]) -> dict[str, Any]:
    """A run in the terms of ``fedwarden run --json``; ``attackers`` are known where the run was a simulation.

    ``caught`` are the attackers, and ``honest_out`` the honest clients, that were in the model in fewer than half of
    the last ten rounds that asked them.
    """
    out = mostly_out([story.full(t) for t in story.series.rounds.tolist()])
    told, worst, success = (story.metric(name) for name in ("accuracy", "worst_accuracy", "attack_success"))
    return {
        "clients": {
            client: {"state": ended.state, "reason": str(story.reason(client)), "weight": ended.weight}
            for client, ended in story.clients.items()
            if ended.last or ended.state in OUT
        },
        "accuracy": told[-1] if len(told) else None,
        "late_accuracy": float(np.mean(told[-LATE:])) if len(told) else None,
        "worst_accuracy": worst[-1] if len(worst) else None,
        "attack_success": success[-1] if len(success) else None,
        "attackers": list(client_order(attackers)),
        "caught": list(client_order(out & set(attackers))),
        "honest_out": list(client_order(out - set(attackers))),
        "acting_as_one": [list(group) for group in story.as_one],
    }


def observed(observations: Mapping[str, Sequence[Observation]]) -> list[str]:
    """Of every auditor with an observation: how it looked, how many alarms it had, and the first of them.

    >>> observed({"b": [Observation(3, "weights", "cosine", "", 0.9, 0.1, 5.0, 0.001, True)]})[0]
    'Auditor b looked at the shared model in 1 round, in 1 way; 1 alarm, the first in round 3: weights, cosine (by chance with probability 0.001).'
    """  # noqa: E501
    return [_told(who, seen) for who, seen in observations.items() if seen]


def _told(who: str, seen: Sequence[Observation]) -> str:
    sources = {(o.source, o.metric, o.layer) for o in seen}
    alarms = [o for o in seen if o.alarm]
    rounds, name = len({o.round for o in seen}), f"Auditor {who}" if who else "An auditor"
    head = f"{name} looked at the shared model in {count(rounds, 'round')}, in {count(len(sources), 'way')}"
    if not alarms:
        return f"{head}; nothing departed from its trend by more than chance explains."
    first = alarms[0]
    what = f"{first.source}, {first.metric.replace('_', ' ')}" + (f", {first.layer}" if first.layer else "")
    by_chance = f" (by chance with probability {first.p:.2g})" if math.isfinite(first.p) else ""
    moved = f"; the answers for class {listed(first.moved())} moved" if first.moved() else ""
    return f"{head}; {count(len(alarms), 'alarm')}, the first in round {first.round}: {what}{by_chance}{moved}."
