"""Which samples look alike to a layer: activation patterns as bits, and in how many of them two samples agree."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 2048  # columns of one product: float16 holds every integer up to 2048, and 128 rows of float32 fit a cache


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
