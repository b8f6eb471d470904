"""Several signals as one: how far out a client is on average."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from ..core.errors import ConfigError
from ..core.protocols import CompleteSignal
from ..core.registry import component, describe, register
from ..core.stats import Mask, Scores, mad
from ..core.types import Cohort, Reading, Server

MEMBERS = ({"name": "divergence", "relative": True}, "relative_distance", "direction")
FLOOR = 1e-3  # of a spread: clients that differ by less, in logarithms or cosines, are alike
CAP = 10.0  # deviations that one signal can say


def height(values: Scores, trusted: Mask) -> Scores:
    """How many robust deviations of the trusted clients each value lies above their median, at most ``CAP`` either way.

        h_i = clip((x_i - median) / max(MAD, FLOOR), -CAP, CAP)

    What is not a number stays so.

    >>> height(np.array([1.0, 2.0, 3.0, 4.0, 100.0]), np.ones(5, bool)).tolist()
    [-2.0, -1.0, 0.0, 1.0, 10.0]
    """
    sound = values[trusted & np.isfinite(values)]
    if not len(sound):
        return values
    return np.clip((values - np.median(sound)) / max(mad(sound), FLOOR), -CAP, CAP)


@register("signal", "ensemble")
@dataclass(frozen=True)
class Ensemble:
    """The mean over several signals of a client's robust z-score.

    A client that is corrupted stands out a little everywhere, and an honest one that is different in something by
    chance is not in the rest. Members are signals of one scale for every model and round, as logarithms and cosines
    are. Those that need a server are left out where it has nothing for them.
    """

    members: Sequence[Any] = MEMBERS
    words: ClassVar[str] = "it stands out"

    def equip(self, server: Server) -> Self:
        kept = []
        for signal in self._signals:
            with suppress(ConfigError):
                kept.append(signal.equip(server))
        return replace(self, members=tuple(kept))

    def __call__(self, cohort: Cohort) -> Reading:
        parts: dict[str, Scores] = {}
        for signal in self._signals:
            if signal.server is None:
                continue
            reading = signal(cohort)
            values = reading.values if isinstance(reading, Reading) else reading
            name = describe(signal)["name"]
            parts[name if name not in parts else f"{name} {len(parts) + 1}"] = height(values, cohort.reference)
        if not parts:
            raise ValueError("ensemble needs a signal that it can measure; give members, or a server to Warden.equip")
        return Reading(np.mean(list(parts.values()), axis=0), parts)

    @property
    def pairs(self) -> bool:
        return any(signal.pairs for signal in self._signals)

    @cached_property
    def _signals(self) -> tuple[CompleteSignal, ...]:
        return tuple(component("signal", member) for member in self.members)
