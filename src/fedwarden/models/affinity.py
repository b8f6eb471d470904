"""Which samples look alike to a layer: activation patterns as bits, and in how many of them two samples agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from ..updates.threads import load_kernels

WIDTH = 2048  # columns of one product: float16 holds every integer up to 2048, and 128 rows of float32 fit a cache
KERNEL_SIZE = 1 << 14  # entries from which the compiled kernels pay for their start


def overlap(units: Tensor) -> Tensor:
    """How many units are on for both of each pair of samples, (..., N, n_l) -> (..., N, N); a unit is on above 0.

        G = sum over blocks of columns of a a^T,   a = 1[units > 0]

    Exact below 2^24 units: a block's product counts at most ``WIDTH`` of them, and float32 adds the blocks.

    >>> overlap(torch.tensor([[1.0, -1.0, 2.0], [3.0, 4.0, 0.0]])).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    size = units.shape[-1]
    if not units.is_cuda:
        on = torch.empty(*units.shape[:-1], min(WIDTH, size), device=units.device)
        parts = (torch.gt(part, 0, out=on[..., : part.shape[-1]]) for part in units.split(WIDTH, dim=-1))
        return torch.stack([a @ a.mT for a in parts]).sum(dim=0)
    width = min(WIDTH, size)
    whole = size // width * width
    on = torch.gt(units, 0, out=torch.empty(units.shape, dtype=torch.float16, device=units.device))
    blocks, rest = on[..., :whole].unflatten(-1, (-1, width)).movedim(-2, -3), on[..., whole:]
    gram: Tensor = (blocks @ blocks.mT).sum(dim=-3, dtype=torch.float32)
    return gram + rest @ rest.mT if whole < size else gram


def hamming(overlap: Tensor) -> Tensor:
    """In how many units each pair of samples differs, from how many are on for both: (..., N, N).

        H_ij = G_ii + G_jj - 2 G_ij

    >>> hamming(torch.tensor([[2.0, 1.0], [1.0, 2.0]])).tolist()
    [[0.0, 2.0], [2.0, 0.0]]
    """
    ones = overlap.diagonal(dim1=-2, dim2=-1)
    return ones[..., :, None] + ones[..., None, :] - 2 * overlap


def affinity(units: Tensor) -> Tensor:
    """The share of units in which each pair of samples agrees: (..., N, n_l) -> (..., N, N) in [0, 1].

        A[i, j] = 1 - Hamming(a(x_i), a(x_j)) / n_l

    arXiv 2605.22266. The units are bits, or pre-activations, which are on above 0.

    >>> affinity(torch.tensor([[True, True, False, False], [True, False, False, False]])).tolist()
    [[1.0, 0.75], [0.75, 1.0]]
    """
    return 1 - hamming(overlap(units)) / units.shape[-1]


def squares(a: Tensor, b: Tensor) -> Tensor:
    """What similarities are made of: ||A - B||_F^2 and ||A||_F^2, (..., N, N) -> (..., 2).

    >>> squares(torch.eye(2), torch.ones(2, 2)).tolist()
    [2.0, 2.0]
    """
    return torch.stack([(a - b).square().sum(dim=(-2, -1)), a.square().sum(dim=(-2, -1))], dim=-1)


Way = Literal["alone", "under vmap", "stacked"]


@dataclass(frozen=True)
class Method:
    """How layers of units are compared: what is held while models run, what is made of it, and its squares.

    ``hold`` is given the units (N, n_l) of one model, also under vmap, or of stacked ones (g, N, n_l); ``finish`` what
    was held of g models; ``squares`` what became of that, of a reference of one model, and n_l, and gives (g, 2) as
    :func:`squares` of the affinities. On a CPU with compiled kernels patterns are packed bits, which are counted.
    Neither that nor a product can be done under vmap, so there only signs are held.
    """

    hold: Callable[[Tensor], Tensor]
    finish: Callable[[Tensor], Tensor]
    squares: Callable[[Tensor, Tensor, int], Tensor]

    @classmethod
    def best(cls, device: torch.device, entries: int, way: Way) -> Method:
        kernels = _kernels() if device.type == "cpu" and entries >= KERNEL_SIZE else None
        sign = torch.sign if device.type == "cpu" else lambda units: units > 0  # each the quicker one there
        if kernels is None:
            hold, finish = (sign, affinity) if way == "under vmap" else (affinity, _as_it_is)
            return cls(hold, finish, lambda held, reference, _: squares(held, reference))

        def pack(units: Tensor) -> Tensor:
            return _pack(kernels, units)

        def count(words: Tensor, reference: Tensor, size: int) -> Tensor:
            return _squares_of_bits(kernels, words, reference, size)

        if way == "under vmap":
            return cls(sign, pack, count)
        return cls(pack if way == "stacked" else lambda units: pack(units[None])[0], _as_it_is, count)


def _as_it_is(held: Tensor) -> Tensor:
    return held


def _pack(kernels: ModuleType, units: Tensor) -> Tensor:
    g, n, size = units.shape
    values, words = units.float().contiguous().numpy(), np.empty((g, -(-size // 128) * 2, n), np.int64)
    kernels.pack(values, words)
    return torch.from_numpy(words)


def _squares_of_bits(kernels: ModuleType, words: Tensor, reference: Tensor, size: int) -> Tensor:
    found = np.empty((len(words), 2))
    kernels.gram_differences(words.numpy(), reference[0].numpy(), size, found)
    return torch.from_numpy(found)


def _kernels() -> ModuleType | None:
    return load_kernels("fedwarden.models.bits")
