"""The ordered values of each column of a block."""

from __future__ import annotations

import math
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@lru_cache(maxsize=16)
def network(n: int, wanted: range | tuple[int, ...]) -> NDArray[np.int64]:
    """Pairs (i, j), i < j, to compare and exchange in turn so that the wanted ranks of n values fall into place.

    Knuth, The Art of Computer Programming, volume 3, 5.2.2, algorithm M (Batcher's merge exchange); pairs on which no
    wanted rank depends are left out.

    >>> network(3, range(3)).tolist()
    [[0, 2], [0, 1], [1, 2]]
    >>> len(network(20, range(20))), len(network(20, range(9, 11)))
    (97, 81)
    """
    needed, pairs = set(wanted), []
    for i, j in reversed(_merge_exchange(n)):
        if i in needed or j in needed:
            needed |= {i, j}
            pairs.append((i, j))
    return np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)


@cache
def _merge_exchange(n: int) -> tuple[tuple[int, int], ...]:
    pairs = []
    top = 1 << max(n - 1, 0).bit_length() >> 1
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while d > 0:
            pairs += [(i, i + d) for i in range(n - d) if i & p == r]
            d, q, r = q - p, q // 2, p
        p //= 2
    return tuple(pairs)


def ranked_mean(block: Tensor, low: int, high: int) -> Tensor:
    """The mean of the values of rank low to high - 1 of each column, counted from 0.

    >>> import torch
    >>> ranked_mean(torch.tensor([[4.0], [1.0], [90.0], [2.0]]), 1, 3).tolist()
    [3.0]
    """
    if high == low + 1:
        return block.kthvalue(high, dim=0).values  # half the time of sorting
    return block.sort(dim=0).values[low:high].mean(dim=0)


def median(block: Tensor) -> Tensor:
    """The middle value of each column, or the mean of the two middle ones.

    >>> import torch
    >>> median(torch.tensor([[1.0], [2.0], [4.0], [90.0]])).tolist()
    [3.0]
    """
    return ranked_mean(block, *middle(len(block)))


def middle(n: int) -> tuple[int, int]:
    """The range of ranks whose mean is the median of n values.

    >>> middle(3), middle(4)
    ((1, 2), (1, 3))
    """
    return (n - 1) // 2, n // 2 + 1


def far_off(block: Tensor, reference: Tensor, limit: float) -> Tensor:
    """Which values lie more than some median absolute deviations of the reference rows from their median.

        |x_ik - m_k| > limit MAD_k

    A column is judged on its own scale.

    >>> import torch
    >>> rows = torch.tensor([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]])
    >>> far_off(torch.tensor([[3.0, 5.0], [9.0, 5.1]]), rows, limit=2.0).tolist()
    [[False, False], [True, True]]
    """
    centre = median(reference)
    return (block - centre).abs() > limit * median((reference - centre).abs())


def closer_half(block: Tensor) -> Tensor:
    """The positions of the floor(n/2) + 1 rows that lie closest to the median of all, each column on its own scale.

        d_i = mean over k of |x_ik - m_k| / MAD_k

    >>> import torch
    >>> closer_half(torch.tensor([[1.0, 5.0], [2.0, 5.5], [3.0, 5.2], [9.0, 9.0]])).tolist()
    [0, 1, 2]
    """
    off = (block - median(block)).abs()
    scale = median(off)
    distances = (off / scale.masked_fill(scale == 0, math.inf)).mean(dim=1)
    order: Tensor = distances.argsort(stable=True)
    return order[: len(block) // 2 + 1].sort().values


def nearest_mean(block: Tensor, keep: int) -> Tensor:
    """The mean of the ``keep`` values of each column closest to its median; of two at the same distance, the smaller.

    The closest values lie side by side in order, so only where they start is to be found.

    >>> import torch
    >>> nearest_mean(torch.tensor([[0.0], [1.0], [2.0], [9.0], [30.0]]), 3).tolist()
    [1.0]
    """
    ordered = block.sort(dim=0).values
    low, high = middle(len(block))
    centre = ordered[low:high].mean(dim=0)
    starts = len(block) - keep + 1
    far = (centre - ordered[:starts]).maximum(ordered[keep - 1 :] - centre)
    first = far.argmin(dim=0)
    windows = ordered.unfold(0, keep, 1).mean(dim=-1)
    return windows.gather(0, first[None])[0]
