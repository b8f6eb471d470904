"""How far a model moved: cosine, Procrustes and central moment discrepancy of two vectors or two matrices.

A vector is one matrix column: its entries are the samples of a single unit. A matrix has samples as rows and units as
columns; further axes are units. A list of matrices with the same rows stands for them side by side, as the layers of
a model do. Sums are in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Array: TypeAlias = Tensor | ArrayLike | Sequence[Tensor]
"""A tensor, an array, nested numbers, or a list of matrices side by side."""

Align: TypeAlias = Literal["orthogonal"] | None

ORDER = 5  # moments that are compared
BLOCK = 1 << 17  # entries whose copies stay in the cache: a third of the time of all columns at once


class Products(NamedTuple):
    """Sums over all entries of two inputs: of their products, squares, and squared differences."""

    inner: float
    squares_a: float
    squares_b: float
    squares_gap: float


def cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two vectors, or between two matrices read as vectors.

        cos = <a, b> / (||a|| ||b||),   in [-1, 1];   NaN where one of them is zero, as no angle is defined

    >>> cosine([3.0, 4.0], [4.0, 3.0])
    0.96
    """
    sums = _products(_pairs(a, b, aligned=True), centre=False)
    scale = math.sqrt(sums.squares_a) * math.sqrt(sums.squares_b)
    return min(max(sums.inner / scale, -1.0), 1.0) if scale > 0 else math.nan


def procrustes(a: Array, b: Array, align: Align = None) -> float:
    """Distance of two point clouds after centring each column and scaling each cloud to unit Frobenius norm.

        p = ||A - B||_F = sqrt(2 - 2 <A, B>);                in [0, 2], sqrt(2) where they are uncorrelated
        p = min_R ||A - B R||_F = sqrt(2 - 2 ||A' B||_*);    in [0, sqrt(2)], with align="orthogonal"

    Brunner and Montuoro, arXiv 2409.13875; Schoenemann, A Generalized Solution of the Orthogonal Procrustes Problem
    (1966). R is orthogonal and ||.||_* the sum of singular values; for a vector R is a sign. Differs from
    ``scipy.spatial.procrustes``: B is not scaled again, so that the disparity there is 1 - (1 - p^2 / 2)^2. NaN where
    a cloud is a single point.

    >>> round(procrustes([0.0, 1.0, 2.0], [5.0, 7.0, 9.0]), 6)  # moved and scaled
    0.0
    >>> [round(procrustes([0.0, 1.0, 2.0], [2.0, 1.0, 0.0], align), 6) for align in (None, "orthogonal")]
    [2.0, 0.0]
    """
    if align not in (None, "orthogonal"):
        raise ValueError(f"align is None or 'orthogonal'; got {align!r}")
    pairs = _pairs(a, b, aligned=True)
    sums = _products(pairs, centre=True)
    norm_a, norm_b = math.sqrt(sums.squares_a), math.sqrt(sums.squares_b)
    if not norm_a * norm_b > 0:
        return math.nan
    if align == "orthogonal":
        squared = 2.0 - 2.0 * _nuclear_norm(pairs) / (norm_a * norm_b)
    elif sums.squares_gap < norm_a * norm_b:  # 2 - 2 <A, B> would lose the digits of clouds that nearly agree
        squared = (sums.squares_gap - (norm_a - norm_b) ** 2) / (norm_a * norm_b)
    else:
        squared = 2.0 - 2.0 * sums.inner / (norm_a * norm_b)
    return math.sqrt(min(max(squared, 0.0), 4.0))


def frobenius(a: Array, b: Array) -> float:
    """The Frobenius norm of the difference: what the paper's equation of the Procrustes distance says to the letter.

        ||A - B||_F = trace(X' X)^(1/2),   X = A - B;   in [0, inf), 0 for equal inputs alone

    Brunner and Montuoro, arXiv 2409.13875, eq. 2. The text there says that the distance lies in [0, 1], which this one
    does not: it grows with the scale of its inputs. :func:`procrustes` centres and scales first.

    >>> frobenius([0.0, 1.0, 2.0], [3.0, 5.0, 2.0])
    5.0
    """
    return math.sqrt(_products(_pairs(a, b, aligned=True), centre=False).squares_gap)


def cmd(a: Array, b: Array, k: int = ORDER) -> float:
    """Central moment discrepancy: how far the means and the central moments of two samples lie apart.

        CMD_K = ||E a - E b|| + sum_{k=2}^K ||C_k(a) - C_k(b)||,   C_k(x) = E (x - E x)^k per unit

    Zellinger et al., Central Moment Discrepancy, arXiv 1702.08811, definition 1. Differs from the paper, which divides
    each term by the k-th power of the length of the interval that holds all values: here a term grows with the k-th
    power of the scale, so that one large activation can decide the sum. The numbers of samples may differ.

    >>> x = np.array([[0.0, 1.0], [2.0, 5.0], [4.0, 3.0]])
    >>> round(cmd(x, x + 3.0), 6)  # only the means move, by 3 in each of two units
    4.242641
    """
    gaps = [moments(x, k) - moments(y, k) for x, y in _pairs(a, b, aligned=False)]
    return float(torch.stack([gap.square().sum(dim=1) for gap in gaps]).sum(dim=0).sqrt().sum())


def moments(x: Tensor, k: int) -> Tensor:
    """The mean and the central moments 2 to k of each column of (N, units): (k, units).

    >>> moments(torch.tensor([[0.0], [2.0], [4.0], [2.0]]), 3).tolist()
    [[2.0], [2.0], [0.0]]
    """
    if k < 1:
        raise ValueError(f"CMD needs at least the first moment; got k={k}")
    parts = []
    for columns in _blocks(x):
        values = columns.double()
        found = [_mean(values)]
        power = centred = values - found[0]
        for _ in range(k - 1):
            power = power * centred
            found.append(power.mean(dim=0))
        parts.append(torch.stack(found))
    return torch.cat(parts, dim=1)


def _products(pairs: list[tuple[Tensor, Tensor]], centre: bool) -> Products:
    """Products of columns, about their means if asked."""
    total = torch.zeros(4, dtype=torch.float64, device=pairs[0][0].device)
    for pair in (blocks for a, b in pairs for blocks in zip(_blocks(a), _blocks(b), strict=True)):
        u, v = ((x.double() - _mean(x) if centre else x.double()).reshape(-1) for x in pair)
        gap = u - v
        total += torch.stack([u @ v, u @ u, v @ v, gap @ gap])
    return Products(*total.tolist())


def _nuclear_norm(pairs: list[tuple[Tensor, Tensor]]) -> float:
    """||A' B||_* of centred matrices, from units x units or from samples x samples, whichever is smaller.

    With A A' = F F', B B' = G G' and square F, G, the matrices A' B and F' G have the same singular values.
    """
    n, units = len(pairs[0][0]), sum(a.shape[1] for a, _ in pairs)
    if units <= n:
        a, b = (torch.cat([x.double() - _mean(x) for x in side], dim=1) for side in zip(*pairs, strict=True))
        return float(torch.linalg.matrix_norm(a.T @ b, "nuc"))
    factors = []
    for side in zip(*pairs, strict=True):
        gram = torch.zeros(n, n, dtype=torch.float64, device=side[0].device)
        for centred in (x.double() - _mean(x) for x in side):
            gram += centred @ centred.T
        values, vectors = torch.linalg.eigh(gram)
        factors.append(vectors * values.clamp(min=0).sqrt())
    return float(torch.linalg.matrix_norm(factors[0].T @ factors[1], "nuc"))


def _blocks(x: Tensor) -> tuple[Tensor, ...]:
    columns: tuple[Tensor, ...] = x.split(max(1, BLOCK // len(x)), dim=1)
    return columns


def _mean(x: Tensor) -> Tensor:
    """The mean of each column, about the first row so that equal values have it exactly."""
    first = x[0].double()
    return first + (x - first).mean(dim=0)


def _pairs(a: Array, b: Array, aligned: bool) -> list[tuple[Tensor, Tensor]]:
    """Two inputs as matrices of the same columns and, where entries are compared one by one, the same rows."""
    left, right = matrices(a), matrices(b)
    shapes_a, shapes_b = ([tuple(x.shape[not aligned :]) for x in side] for side in (left, right))
    if shapes_a != shapes_b:
        what = "shape" if aligned else "number of units"
        raise ValueError(f"both need the same {what}; got {_shapes(left)} and {_shapes(right)}")
    return list(zip(left, right, strict=True))


def matrices(a: Array) -> list[Tensor]:
    """An input as matrices of samples and units, side by side."""
    if isinstance(a, list | tuple) and a and isinstance(a[0], Tensor | np.ndarray):
        parts = [_matrix(x) for x in a]
        if any(np.ndim(x) < 2 for x in a) or len({len(x) for x in parts}) > 1:
            raise ValueError(f"a list stands for matrices with the same rows; got {_shapes(parts)}")
        return parts
    return [_matrix(a)]


def _matrix(a: Array) -> Tensor:
    x: Tensor = a.detach() if isinstance(a, Tensor) else torch.as_tensor(_writeable(np.asarray(a)))
    if x.numel() == 0 or x.is_complex():
        raise ValueError(f"a metric needs at least one real number; got shape {tuple(x.shape)} of {x.dtype}")
    return x.reshape(len(x), -1) if x.ndim > 1 else x.reshape(-1, 1)


def _writeable(array: NDArray[Any]) -> NDArray[Any]:
    return array if array.flags.writeable else array.copy()  # torch warns of memory it may not write to


def _shapes(matrices: list[Tensor]) -> str:
    return ", ".join(" x ".join(map(str, x.shape)) for x in matrices)
