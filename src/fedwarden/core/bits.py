# mypy: ignore-errors
"""CPU kernels for activation patterns held as bits: packing, and how many bits each pair of samples differs in.

Needs numba. :mod:`fedwarden.signals.divergence` holds the same counts as matrix products in torch, which is the
reference, the fallback and the path on a GPU. Words are laid out with the samples innermost, so that one word of a
sample meets those of all others in one run of memory.
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
    """Bit b of words[w, i] is set where units[i, 64 w + b] > 0; bits past the last unit stay unset."""
    n, size = units.shape
    whole = size // 64
    for i in range(n):
        row = units[i]
        for w in range(whole):
            word = np.uint64(0)
            for b in range(64):
                word |= np.uint64(row[64 * w + b] > 0) << np.uint64(b)
            words[w, i] = word
        if whole < len(words):
            word = np.uint64(0)
            for b in range(size - 64 * whole):
                word |= np.uint64(row[64 * whole + b] > 0) << np.uint64(b)
            words[whole, i] = word


@njit(nogil=True, cache=True)
def differences(words, out):
    """out[i, j] = how many bits differ between samples i and j."""
    size, n = words.shape
    counts = np.empty(n, np.uint64)
    half = size > FEW
    for i in range(n):
        stop = i if half else n
        counts[:] = 0
        for w in range(size):
            row = words[w]
            word = row[i]
            for j in range(stop):
                counts[j] += _count(word ^ row[j])
        for j in range(stop):
            out[i, j] = counts[j]
    if half:
        for i in range(n):
            out[i, i] = 0
            for j in range(i):
                out[j, i] = out[i, j]
