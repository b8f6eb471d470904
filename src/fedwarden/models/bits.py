"""CPU kernels for activation patterns held as bits: packing, and how many bits each pair of samples differs in.

Needs numba. :mod:`fedwarden.models.affinity` holds the same counts as matrix products in torch, which is the
reference, the fallback and the path on a GPU. Words are laid out with the samples innermost, so that one word of a
sample meets those of all others in one run of memory. On one thread: they run between operations of torch, whose own
threads are still spinning then and would be in the way of more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

FAST = {"reassoc", "contract", "nsz", "arcp"}

Words = NDArray[np.int64]


@intrinsic
def _count(typingctx: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@njit(nogil=True, cache=True)
def pack(units: NDArray[np.float32], words: Words) -> None:
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
def gram_differences(words: Words, reference: Words, size: int, out: NDArray[np.float64]) -> None:
    """out[c] = (||A - B||^2, ||A||^2) with A_ij = 1 - h_ij / size, h the bits in which samples i, j of words[c] differ.

    B is the same of the reference. The sums are those of whole numbers, exact below 2^53. The words of a sample are
    even in number.
    """
    models, _, n = words.shape
    counts, usual = np.empty((4, n), np.int64), np.empty((4, n), np.int64)
    out[:] = 0
    for i in range(0, n, 4):
        _differ(reference, i, usual[0], usual[1], usual[2], usual[3])
        for c in range(models):
            _differ(words[c], i, counts[0], counts[1], counts[2], counts[3])
            apart, total, squares = 0.0, 0.0, 0.0
            for k in range(min(4, n - i)):
                found, expected = counts[k], usual[k]
                for j in range(i + k):
                    h, d = np.float64(found[j]), np.float64(found[j] - expected[j])
                    apart += d * d
                    total += h
                    squares += h * h
            out[c, 0] += 2 * apart / size**2
            out[c, 1] += 2 * squares / size**2 - 4 * total / size
    out[:, 1] += n * n


@njit(nogil=True, cache=True)
def _differ(words: Words, i: int, first: Words, second: Words, third: Words, fourth: Words) -> None:
    """In how many bits samples i to i + 3 differ from each one up to there: four share what is loaded of the others."""
    n = words.shape[1]
    stop, p, q, r = min(i + 4, n), min(i + 1, n - 1), min(i + 2, n - 1), min(i + 3, n - 1)
    for j in range(stop):
        first[j], second[j], third[j], fourth[j] = 0, 0, 0, 0
    for w in range(0, len(words), 2):  # two at a time: the loops are short
        a, b = words[w], words[w + 1]
        ai, ap, aq, ar, bi, bp, bq, br = a[i], a[p], a[q], a[r], b[i], b[p], b[q], b[r]
        for j in range(stop):
            x, y = a[j], b[j]
            first[j] += _apart(ai, x) + _apart(bi, y)
            second[j] += _apart(ap, x) + _apart(bp, y)
            third[j] += _apart(aq, x) + _apart(bq, y)
            fourth[j] += _apart(ar, x) + _apart(br, y)


@njit(nogil=True, inline="always")
def _apart(a: np.int64, b: np.int64) -> np.int64:
    """In how many bits two words differ."""
    return np.int64(_count(np.uint64(a ^ b)))
