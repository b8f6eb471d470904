"""Packed activation patterns: the same counts as a plain loop over bits."""

import numpy as np
import pytest

pytest.importorskip("numba")

from fedwarden.models.bits import pack

SIZES = [1, 63, 64, 65, 128, 129, 1000, 3000]


def packed(units):
    words = np.full((len(units), -(-units.shape[2] // 128) * 2, units.shape[1]), -1, np.int64)
    pack(units, words)
    return words


@pytest.mark.parametrize("size", SIZES)
def test_every_unit_above_zero_is_a_bit_and_nothing_else_is(size):
    units = np.random.default_rng(size).normal(size=(2, 3, size)).astype(np.float32)
    units[0, 0, ::2] = 0.0
    units[0, 1, ::2] = -0.0
    units[1, 2, ::2] = np.nan
    words = packed(units)
    for c, i in np.ndindex(2, 3):
        bits = sum((int(w) % 2**64) << (64 * k) for k, w in enumerate(words[c, :, i]))
        assert bits == sum(1 << k for k in range(size) if units[c, i, k] > 0)
