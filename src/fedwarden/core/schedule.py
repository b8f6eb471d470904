"""When an attack is on, and how strongly."""

from __future__ import annotations


def strength(
    t: int, start: int = 1, end: int | None = None, ramp: int = 0, on: int | None = None, off: int = 0
) -> float:
    """How strong an attack is in round t, from 0 to 1.

        s_t = min(1, (t - start + 1) / (ramp + 1))   for start <= t <= end, else 0

    ``ramp`` rounds lie below full strength; with ``on``, rounds in which it is on and ``off`` ones in which it is not
    take turns, from the start.

    >>> [strength(t, start=2, end=5, ramp=1) for t in range(1, 7)]
    [0.0, 0.5, 1.0, 1.0, 1.0, 0.0]
    >>> [strength(t, on=1, off=2) for t in range(1, 6)]
    [1.0, 0.0, 0.0, 1.0, 0.0]
    """
    if t < start or (end is not None and t > end):
        return 0.0
    if on is not None and (t - start) % (on + off) >= on:
        return 0.0
    return min(1.0, (t - start + 1) / (ramp + 1))
