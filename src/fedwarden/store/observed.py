"""What the auditors of a run saw, a sentence each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..core.types import Observation
from ..core.words import count, listed


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
    moved = f"; the answers for class {listed([str(c) for c in first.moved()])} moved" if first.moved() else ""
    return f"{head}; {count(len(alarms), 'alarm')}, the first in round {first.round}: {what}{by_chance}{moved}."
