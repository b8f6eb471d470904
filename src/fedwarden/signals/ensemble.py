"""Several signals as one: how far out a client is in whatever it is farthest out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np

from ..core.errors import ConfigError
from ..core.protocols import equip
from ..core.registry import component, describe, register
from ..core.stats import Scores
from ..core.types import Cohort, Reading, Server

EFFECTS: tuple[tuple[Mapping[str, Any], float], ...] = (
    ({"name": "divergence", "relative": True}, math.log(1.5)),
    ({"name": "relative_distance"}, math.log(1.5)),
    ({"name": "direction"}, 0.2),
)


def farthest(parts: Mapping[str, Scores]) -> Scores:
    """The largest part of each client; NaN where one is: what cannot be compared must not pass.

    >>> farthest({"a": np.array([0.1, 2.0]), "b": np.array([0.4, -1.0])}).tolist()
    [0.4, 2.0]
    """
    return np.asarray(np.max(list(parts.values()), axis=0), dtype=np.float64)


@register("signal", "ensemble")
@dataclass(frozen=True)
class Ensemble:
    """The largest of several signals, each in units of what is worth a word.

    Those that need a server are left out where it has nothing for them. ``members`` are pairs of a signal and its unit:
    half as far again as the median for distances and divergences, 0.2 for cosines. A median client has 0; 1 is worth a
    word.
    """

    members: tuple[tuple[Any, float], ...] = field(default=EFFECTS)
    words: ClassVar[str] = "it stands out"

    def equip(self, server: Server) -> Self:
        kept = []
        for signal, unit in self.members:
            try:
                kept.append((equip(component("signal", signal), server), unit))
            except ConfigError:
                continue
        return replace(self, members=tuple(kept))

    def __call__(self, cohort: Cohort) -> Reading:
        parts: dict[str, Scores] = {}
        for signal, unit in self.members:
            member = component("signal", signal)
            if hasattr(member, "equip") and getattr(member, "server", None) is None:
                continue
            reading = member(cohort)
            values = reading.values if isinstance(reading, Reading) else reading
            name = describe(member)["name"]
            parts[name if name not in parts else f"{name} {len(parts) + 1}"] = values / unit
        if not parts:
            raise ValueError("ensemble needs a signal that it can measure; give members, or a server to Warden.equip")
        return Reading(farthest(parts), parts)
