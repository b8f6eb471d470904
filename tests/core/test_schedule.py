"""Schedules against a walk from round to round."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.schedule import strength


def walk(rounds, start, end, ramp, on, off):
    """The same, told as a story: each round the attacker looks at what it did before."""
    found, level, phase = [], 0, 0
    for t in range(1, rounds + 1):
        if t < start or t > (end or rounds):
            found.append(0.0)
            continue
        level = min(level + 1, ramp + 1)
        active = on is None or phase < on
        phase = 0 if on is not None and phase + 1 == on + off else phase + 1
        found.append(level / (ramp + 1) if active else 0.0)
    return found


@given(
    st.integers(1, 8), st.none() | st.integers(0, 9), st.integers(0, 6),
    st.none() | st.tuples(st.integers(1, 4), st.integers(1, 4)),
)  # fmt: skip
def test_a_schedule_is_what_one_would_live_through(start, length, ramp, period):
    end = None if length is None else start + length
    on, off = period or (None, 0)
    got = [strength(t, start, end, ramp, on, off) for t in range(1, 31)]
    assert got == pytest.approx(walk(30, start, end, ramp, on, off))
