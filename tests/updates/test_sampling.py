"""Which columns are looked at: of the measured ones alone, spread over all of them, and none of them never."""

import numpy as np

from fedwarden.updates.sketch import RUN, spread_columns


def test_columns_are_the_measured_ones_and_spread_over_them():
    measured = [(100, 300), (500, 1000)]
    every = [*range(100, 300), *range(500, 1000)]
    assert spread_columns(measured, 10**6, np.random.default_rng(0)).tolist() == every
    for most in (7 * RUN, 40 * RUN, 699):
        some = spread_columns(measured, most, np.random.default_rng(most))
        assert set(some.tolist()) <= set(every)
        assert (np.diff(some) > 0).all()
        edges = np.linspace(0, 700, most // RUN + 1).astype(int)
        assert (np.histogram(np.searchsorted(every, some), edges - 0.5)[0] == RUN).all()
    assert len(spread_columns([(0, 5)], 3, np.random.default_rng(0))) == 5


def test_every_column_is_looked_at_now_and_then():
    seen = [spread_columns([(0, 1000)], 200, np.random.default_rng(seed)) for seed in range(300)]
    assert len(np.unique(np.concatenate(seen))) == 1000
