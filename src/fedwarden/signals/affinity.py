"""Which samples look alike to a layer: activation patterns as bits, and in how many of them two samples agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch
from torch import Tensor

from ..core.threads import load_kernels

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


@dataclass(frozen=True)
class Method:
    """How a layer's units (N, n_l) are held while a model runs, and the affinities (g, N, N) of g that were held.

    On a CPU with compiled kernels as packed bits, which are counted; elsewhere as the affinities themselves. Of stacked
    models only the signs are taken while they run: neither can be done under vmap.
    """

    hold: Callable[[Tensor], Tensor]
    affinities: Callable[[Tensor, int], Tensor]

    @classmethod
    def best(cls, device: torch.device, entries: int, stacked: bool = False) -> Method:
        kernels = _kernels() if device.type == "cpu" and entries >= KERNEL_SIZE else None
        sign = torch.sign if device.type == "cpu" else lambda units: units > 0  # each the quicker one there
        if kernels is None:
            return cls(sign, lambda units, _: _agree(units)) if stacked else cls(_agree, lambda held, _: held)
        if stacked:
            return cls(sign, lambda units, size: _agreement(kernels, _pack(kernels, units), size))
        return cls(lambda units: _pack(kernels, units[None])[0], lambda words, size: _agreement(kernels, words, size))


def _agree(units: Tensor) -> Tensor:
    """The affinities by matrix products, (..., N, n_l) -> (..., N, N)."""
    return 1 - hamming(overlap(units)) / units.shape[-1]


def _pack(kernels: ModuleType, units: Tensor) -> Tensor:
    g, n, size = units.shape
    values, words = units.float().contiguous().numpy(), np.empty((g, -(-size // 64), n), np.int64)
    kernels.pack(values, words)
    return torch.from_numpy(words)


def _agreement(kernels: ModuleType, words: Tensor, size: int) -> Tensor:
    g, _, n = words.shape
    out = np.empty((g, n, n), np.float32)
    kernels.agreement(words.numpy(), size, out)
    return torch.from_numpy(out)


def _kernels() -> ModuleType | None:
    return load_kernels("fedwarden.core.bits")


def affinity(units: Tensor) -> Tensor:
    """The share of units in which each pair of samples agrees: (N, n_l) -> (N, N) in [0, 1].

        A[i, j] = 1 - Hamming(a(x_i), a(x_j)) / n_l

    arXiv 2605.22266. The units are bits, or pre-activations, which are on above 0.

    >>> affinity(torch.tensor([[True, True, False, False], [True, False, False, False]])).tolist()
    [[1.0, 0.75], [0.75, 1.0]]
    """
    method = Method.best(units.device, units.numel())
    return method.affinities(method.hold(units)[None], units.shape[1])[0]
