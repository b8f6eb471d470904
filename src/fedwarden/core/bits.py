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

FEW = 16  # words of a sample up to which counting both halves is quicker than mirroring one


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
            if 64 * whole < size:
                word = np.int64(0)
                for b in range(size - 64 * whole):
                    word |= np.int64(row[64 * whole + b] > 0) << np.int64(b)
                words[c, whole, i] = word


@njit(nogil=True, cache=True)
def agreement(words, size, out):
    """out[c, i, j] = 1 - d / size with d the bits in which samples i and j of words[c] differ.

    Long words are counted for j < i alone and written twice.
    """
    models, length, n = words.shape
    counts = np.empty(n, np.uint64)
    half = length > FEW
    for c in range(models):
        for i in range(n):
            stop = i if half else n
            counts[:] = 0
            for w in range(length):
                row = words[c, w]
                word = row[i]
                for j in range(stop):
                    counts[j] += _count(np.uint64(word ^ row[j]))
            row = out[c, i]
            for j in range(stop):
                row[j] = np.float32(1) - np.float32(counts[j]) / np.float32(size)
            if half:
                row[i] = 1
                for j in range(stop):
                    out[c, j, i] = row[j]
