"""Packed activation patterns: the same counts as a plain loop over bits."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from fedwarden.core.bits import FEW, agreement, pack

SIZES = [1, 63, 64, 65, 64 * FEW, 64 * FEW + 1, 3000]


def packed(units):
    words = np.full((len(units), -(-units.shape[2] // 64), units.shape[1]), -1, np.int64)
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
        bits = [int(np.uint64(w)) for w in words[c, :, i]]
        assert sum(bits[k // 64] >> (k % 64) & 1 for k in range(size)) == (units[c, i] > 0).sum()
        assert all((bits[k // 64] >> (k % 64) & 1) == (units[c, i, k] > 0) for k in range(size))
        assert bits[-1] >> ((size - 1) % 64 + 1) == 0


@pytest.mark.parametrize("size", SIZES)
def test_agreement_is_that_of_a_loop_over_pairs(size):
    units = np.random.default_rng(size).normal(size=(2, 5, size)).astype(np.float32)
    units[1, 4] = units[1, 0]
    out = np.full((2, 5, 5), np.nan, np.float32)
    agreement(packed(units), size, out)
    for c, i, j in np.ndindex(2, 5, 5):
        differ = ((units[c, i] > 0) != (units[c, j] > 0)).sum()
        assert out[c, i, j] == pytest.approx(1 - differ / size, abs=1e-6)
    assert (np.diagonal(out, axis1=1, axis2=2) == 1).all()
    assert out[1, 4, 0] == 1
