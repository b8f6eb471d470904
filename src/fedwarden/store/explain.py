"""Why a client was flagged: the watches that carry the verdict and what they saw."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..core.stats import robust_z
from ..core.types import RoundRecord, WatchRecord

PLAIN = 3.0  # robust deviations within which a signal is not worth a word
EARLIER = "flagged by an earlier look at the same round"
WORTH = 0.01  # of a limit, between the lowest and the highest score


@dataclass(frozen=True)
class Flag:
    """What one watch saw of a flagged client: how far out its signal is, in MADs, and the part where it is farthest."""

    watch: str
    words: str
    score: float
    limit: float
    height: float
    part: str = ""

    def tell(self, numbers: bool = True) -> str:
        """In words, with or without the numbers."""
        if math.isnan(self.height):
            return f"its {self.watch} is not a number"
        side = f"{abs(self.height):.0f} MADs {'above' if self.height >= 0 else 'below'} the median"
        out = "gathered over rounds" if abs(self.height) < PLAIN else side
        told = f" ({self.watch} {self.score:.3g}, limit {self.limit:.3g}, {out})" if numbers else ""
        return f"{self.words}{told}{f', most in {self.part}' if self.part else ''}"


@dataclass(frozen=True)
class Reason:
    """Why a client is left out; ``usual`` are the watches to which it is not unusual. ``str(reason)`` is a sentence.

    ``words`` are the operator's, where no watch but the operator leaves it out.
    """

    flags: tuple[Flag, ...] = ()
    usual: tuple[str, ...] = ()
    flagged: bool = True
    words: str = ""

    @property
    def short(self) -> str:
        """The sentence without numbers and without what is not unusual."""
        if not self.flagged:
            return self.words or "weight 0 without a flag"
        return self._carried(numbers=False)

    def __str__(self) -> str:
        if not self.flagged:
            return self.short
        return self._carried() + (f"; not unusual: {', '.join(self.usual)}" if self.usual else "")

    def _carried(self, numbers: bool = True) -> str:
        first = {(flag.words, flag.part): flag for flag in reversed(self.flags)}  # several watches may see the same
        told = "; ".join(flag.tell(numbers) for flag in self.flags if flag in first.values())
        return told or EARLIER


def explain(record: RoundRecord) -> dict[str, Reason]:
    """For every flagged client: the watches that carry the verdict with the score and the limit it exceeded, how far
    out the signal of this round is, and what is not unusual, of the signals that tell clients apart at all.

    >>> moved, apart = np.array([0.1, 0.2, 0.1, 0.2, 2.0]), np.array([1.0, 1.1, 0.9, 1.0, 1.1])
    >>> flags, none = np.arange(5) == 4, np.zeros(5, bool)
    >>> watches = (
    ...     WatchRecord("divergence", moved, moved, 1.0, flags, None, {"layer 1": moved, "layer 2": apart}, "it moved"),
    ...     WatchRecord("distance", apart, apart, 2.0, none, None, {}, "it lies apart"),
    ... )
    >>> reason = explain(RoundRecord(1, tuple("abcde"), np.ones(5), np.ones(5), watches, flags))["e"]
    >>> print(reason)
    it moved (divergence 2, limit 1, 18 MADs above the median), most in layer 1; not unusual: distance
    >>> reason.short
    'it moved, most in layer 1'
    """
    found = {}
    for i in np.flatnonzero(record.flagged).tolist():
        carrying = tuple(_flag(w, i) for w in record.watches if w.flagged[i])
        spoke = [w for w in record.watches if not w.flagged[i] and _tells_apart(w)]
        usual = [w.name for w in spoke if abs(_height(w.signal, i)) < PLAIN]
        found[record.client_ids[i]] = Reason(carrying, tuple(usual))
    return found


def _tells_apart(watch: WatchRecord) -> bool:
    """Whether clients differ in a watch by a part of its limit that is worth a word."""
    apart = float(np.nanmax(watch.scores) - np.nanmin(watch.scores))
    return apart > (WORTH * abs(watch.threshold) if math.isfinite(watch.threshold) else 0.0)


def _flag(watch: WatchRecord, i: int) -> Flag:
    part = max(watch.parts, key=lambda part: _height(watch.parts[part], i)) if watch.parts else ""
    height = _height(watch.signal, i)
    return Flag(watch.name, watch.words, float(watch.scores[i]), watch.threshold, height, part)


def _height(values: np.ndarray[tuple[int], np.dtype[np.float64]], i: int) -> float:
    """A client's robust z among the clients that have a value; capped, as equal values have no spread."""
    sound = np.isfinite(values)
    if not sound[i]:
        return math.nan
    place = int(np.flatnonzero(np.flatnonzero(sound) == i)[0])
    return float(np.clip(robust_z(values[sound])[place], -999, 999))
