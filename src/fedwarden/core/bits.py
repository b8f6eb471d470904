# mypy: ignore-errors
"""CPU kernels for activation patterns held as bits: packing, and how many bits each pair of samples differs in.

Needs numba. :mod:`fedwarden.signals.affinity` holds the same counts as matrix products in torch, which is the
reference, the fallback and the path on a GPU. Words are laid out with the samples innermost, so that one word of a
sample meets those of all others in one run of memory. On one thread: they run between operations of torch, whose own
threads are still spinning then and would be in the way of more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic

FAST = {"reassoc", "contract", "nsz", "arcp"}


@intrinsic
def _count(typingctx: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@njit(nogil=True, cache=True)
def pack(units, words):
    """Bit b of words[c, w, i] is set where units[c, i, 64 w + b] > 0; the rest is unset."""
    size = units.shape[2]
    whole = size // 64
    for c in range(len(units)):
        for i in range(units.shape[1]):
            row = units[c, i]
            for w in range(whole):
                word = np.int64(0)
                for b in range(64):
                    word |= np.int64(row[64 * w + b] > 0) << np.int64(b)
                words[c, w, i] = word
            for w in range(whole, words.shape[1]):
                word = np.int64(0)
                for b in range(size - 64 * w):
                    word |= np.int64(row[64 * w + b] > 0) << np.int64(b)
                words[c, w, i] = word


@njit(nogil=True, fastmath=FAST, cache=True)
def meet(words, reference, out):
    """Sums over the pairs of samples j < i, with h the bits in which they differ in words[c], r in the reference.

    out[c] = (sum (h - r)^2, sum h, sum h^2): whole numbers, and exact below 2^53. The words of a sample are even in
    number. The last two are counted as the sums are made: most layers have no more.
    """
    models, length, n = words.shape
    counts, usual = np.zeros(n, np.int64), np.zeros(n, np.int64)
    out[:] = 0
    for i in range(n):
        _differ(reference, i, length, usual)
        for c in range(models):
            if length > 2:
                _differ(words[c], i, length - 2, counts)
            row, last = words[c, length - 2], words[c, length - 1]
            apart, total, squares = 0.0, 0.0, 0.0
            for j in range(i):
                h = counts[j] + _apart(row[i], row[j]) + _apart(last[i], last[j])
                d = np.float64(h - usual[j])
                apart += d * d
                total += np.float64(h)
                squares += np.float64(h) * np.float64(h)
            out[c, 0] += apart
            out[c, 1] += total
            out[c, 2] += squares


@njit(nogil=True, inline="always")
def _apart(a, b):
    """In how many bits two words differ."""
    return np.int64(_count(np.uint64(a ^ b)))


@njit(nogil=True, inline="always")
def _differ(words, i, length, counts):
    """In how many bits of the first words sample i differs from each one before it."""
    counts[:i] = 0
    for w in range(0, length, 2):  # two at a time: the loops are short
        row, next_row = words[w], words[w + 1]
        for j in range(i):
            counts[j] += _apart(row[i], row[j]) + _apart(next_row[i], next_row[j])
