"""Networks put every input in order; columns agree with NumPy."""

from itertools import product

import numpy as np
import pytest

from fedwarden.updates.ranks import network


@pytest.mark.parametrize("n", range(1, 11))
def test_a_network_sorts_every_zero_one_input(n):
    """By the zero-one principle it then sorts everything (Knuth, volume 3, 5.3.4, theorem Z)."""
    values = np.array(list(product([0, 1], repeat=n)))
    for i, j in network(n, range(n)):
        values[:, [i, j]] = np.sort(values[:, [i, j]], axis=1)
    assert (np.diff(values, axis=1) >= 0).all()


@pytest.mark.parametrize("n", [5, 8, 13, 50])
def test_a_smaller_network_places_the_wanted_ranks(n):
    values = np.random.default_rng(n).normal(size=(200, n))
    ordered = np.sort(values, axis=1)
    wanted = [(n - 1) // 2, n // 2]
    pairs = network(n, tuple(wanted))
    assert len(pairs) < len(network(n, range(n)))
    for i, j in pairs:
        values[:, [i, j]] = np.sort(values[:, [i, j]], axis=1)
    assert np.array_equal(values[:, wanted], ordered[:, wanted])
