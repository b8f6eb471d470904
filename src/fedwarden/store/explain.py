"""Why a client was flagged, in words."""

from __future__ import annotations

import numpy as np

from ..core.stats import robust_z
from ..core.types import RoundRecord, WatchRecord

PLAIN = 3.0  # robust deviations within which a signal is not worth a word


def explain(record: RoundRecord) -> dict[str, str]:
    """For every flagged client: the watches that carry the verdict with the score and the limit it exceeded, how far
    out the signal of this round is, and what is not unusual, of the signals that tell clients apart at all.

    >>> moved, apart = np.array([0.1, 0.2, 0.1, 0.2, 2.0]), np.array([1.0, 1.1, 0.9, 1.0, 1.1])
    >>> flags, none = np.arange(5) == 4, np.zeros(5, bool)
    >>> watches = (
    ...     WatchRecord("divergence", moved, moved, 1.0, flags, None, {"layer 1": moved, "layer 2": apart}, "it moved"),
    ...     WatchRecord("distance", apart, apart, 2.0, none, None, {}, "it lies apart"),
    ... )
    >>> explain(RoundRecord(1, tuple("abcde"), np.ones(5), np.ones(5), watches, flags))
    {'e': 'it moved (divergence 2, limit 1, 18 MADs above the median), most in layer 1; not unusual: distance'}
    """
    found = {}
    for i in np.flatnonzero(record.flagged):
        carrying = [w for w in record.watches if w.flagged[i]]
        spoke = [w for w in record.watches if not w.flagged[i] and np.nanmax(w.signal) > np.nanmin(w.signal)]
        usual = [w.name for w in spoke if abs(_height(w.signal, int(i))) < PLAIN]
        words = "; ".join(_words(w, int(i)) for w in carrying) or "flagged by an earlier look at the same round"
        found[record.client_ids[i]] = words + (f"; not unusual: {', '.join(usual)}" if usual else "")
    return found


def _words(watch: WatchRecord, i: int) -> str:
    height = _height(watch.signal, i)
    if np.isnan(height):
        return f"its {watch.name} is not a number"
    side = f"{abs(height):.0f} MADs {'above' if height >= 0 else 'below'} the median"
    out = "gathered over rounds" if abs(height) < PLAIN else side
    text = f"{watch.words} ({watch.name} {watch.scores[i]:.3g}, limit {watch.threshold:.3g}, {out})"
    if watch.parts:
        text += f", most in {max(watch.parts, key=lambda part: _height(watch.parts[part], i))}"
    return text


def _height(values: np.ndarray[tuple[int], np.dtype[np.float64]], i: int) -> float:
    """A client's robust z among the clients that have a value; capped, as equal values have no spread."""
    sound = np.isfinite(values)
    if not sound[i]:
        return float("nan")
    place = int(np.flatnonzero(np.flatnonzero(sound) == i)[0])
    return float(np.clip(robust_z(values[sound])[place], -999, 999))
