"""Low-rank adapters: products of factor pairs, compared and combined without forming a layer's whole matrix.

A client's factors are A (r, d_in) and B (d_out, r); with the scale s they add s B A to the weights of the layer.
Clients may have different ranks, and many pairs of factors have the same product, so only products are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Numbers = NDArray[np.float64]
ROUNDING = 1e-13  # of a squared length: the difference of two equal products in float32 is 3e-15 of it at every rank
RIDGE = 1e-14  # of unit rows, as large as rounding errors, so that a Cholesky factor exists
DEAD = 1e-7  # of the largest singular value: below it is rounding alone


class Factors(NamedTuple):
    """The two factors of one layer, A (r, d_in) and B (d_out, r); a convolution's further dimensions are flattened."""

    a: NDArray[Any]
    b: NDArray[Any]

    @classmethod
    def of(cls, a: NDArray[Any], b: NDArray[Any]) -> Factors:
        return cls(a.reshape(len(a), -1), b.reshape(len(b), -1))

    @property
    def rank(self) -> int:
        return len(self.a)


@dataclass(frozen=True, eq=False)
class Layers:
    """The factors of p layers of one shape in one round, each as R rank-one products of a column and a row.

        M = sum_k m_k s_k b_k a_k^T,   <M, M'> = (m l)^T [cos(a, a) o cos(b, b)] (m' l),   l_k = s_k |a_k| |b_k|

    ``rows`` (p, R, d_in) has the a_k, ``columns`` (p, d_out, R) the b_k and ``scales`` (R,) the s_k; the global model's
    are first. ``lengths`` (p, R) are the l_k, ``widths`` the |b_k|, ``along`` and ``across`` (p, R, R) the cosines
    between rows and between columns. Row i of ``updates`` (n, R) has the coefficients m of client i's update. With
    cosines, A / c and c B give the same result as A and B, up to the last digits.
    """

    rows: Tensor
    columns: Tensor
    scales: Tensor
    lengths: Tensor
    widths: Tensor
    along: Tensor
    across: Tensor
    updates: Tensor
    rank: int

    @classmethod
    def of(
        cls, model: Sequence[Factors], clients: Sequence[Sequence[Factors]], scale: float, scales: Sequence[float]
    ) -> Layers:
        """The p layers of the global model and of the clients, each with its scale and of one rank in all layers.

        The update of a client of a smaller rank is its difference from the model's first products: these are the best
        approximation of that rank, which the client started from.
        """
        everyone = [model, *clients]
        layers = list(zip(*everyone, strict=True))
        rows = torch.from_numpy(np.stack([np.concatenate([f.a for f in layer]) for layer in layers], dtype=np.float64))
        tall = np.stack([np.concatenate([f.b for f in layer], axis=1) for layer in layers], dtype=np.float64)
        columns = torch.from_numpy(tall)
        along, lengths = _cosines(rows @ rows.mT)
        across, widths = _cosines(columns.mT @ columns)
        ranks = [own[0].rank for own in everyone]
        each, stops = torch.from_numpy(np.repeat([scale, *scales], ranks)), np.cumsum(ranks)
        updates = torch.zeros(len(clients), stops[-1], dtype=torch.float64)
        for update, stop, rank in zip(updates, stops[1:], ranks[1:], strict=True):
            update[: min(rank, ranks[0])] = -1.0
            update[stop - rank : stop] = 1.0
        return cls(rows, columns, each, each * lengths * widths, widths, along, across, updates, ranks[0])

    def products(self) -> tuple[Numbers, Numbers]:
        """The inner products of all updates (p, n, n), and bounds on the rounding errors of squared lengths (p, n)."""
        pairs = self.along * self.across * self.lengths[:, None] * self.lengths[:, :, None]
        parts = self.updates.abs()
        rounding = ROUNDING * ((parts @ pairs.abs()) * parts).sum(dim=2)
        return (self.updates @ pairs @ self.updates.T).numpy(), rounding.numpy()

    def combined(self, coefficients: Numbers) -> Tensor:
        """The coefficients (p, R) of the global model plus a combination (p, n) of the updates."""
        return (torch.arange(len(self.scales)) < self.rank) + torch.from_numpy(coefficients) @ self.updates


def _cosines(products: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines of vectors (0 for zero vectors) and their lengths, from their inner products."""
    lengths = products.diagonal(dim1=1, dim2=2).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    return products * inverse[:, None] * inverse[:, :, None], lengths


def coordinates(products: Numbers, rounding: Numbers) -> tuple[Numbers, Numbers]:
    """Rows x (p, n, n) with these inner products, and inverses V (p, n, n): u V combines the updates to the vector u.

        K = S C S, S the lengths;   C = W L W^T;   x = S W L^(1/2);   V = L^(-1/2) W^T S^(-1)

    Lengths are divided out first, so that one very long update costs the others no precision. An update whose squared
    length is at most its ``rounding`` becomes exactly 0: the client returned the model, in any factors, and is idle.

    >>> x, back = coordinates(np.array([[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1e-20]]), np.full(3, 1e-15))
    >>> (x @ x.T).round(9).tolist()
    [[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    >>> ((x[0] + x[1]) @ back).round(9).tolist()  # rows 0 and 1, each once
    [1.0, 1.0, 0.0]
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    lengths = np.sqrt(np.where(squares > rounding, squares, 0.0))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    values, vectors = np.linalg.eigh(products * inverse[..., None] * inverse[..., None, :])
    roots = np.sqrt(np.where(values > len(products[0]) * np.finfo(np.float64).eps, values, 0.0))[..., None, :]
    back = np.divide(vectors, roots, out=np.zeros_like(vectors), where=roots > 0)
    return lengths[..., None] * vectors * roots, back.swapaxes(-1, -2) * inverse[..., None, :]


def truncated(
    layers: Layers, coefficients: Tensor, rank: int, model: Sequence[Factors]
) -> tuple[list[Factors], float, float]:
    """The best approximations of rank r, the squared length that they leave out, and the whole squared length.

        M = U S V^T;   A = D V_r^T,   B = U_r S_r D^(-1),   D_k = max(c, sqrt(S_k))

    Singular values are in descending order, so the first k rows and columns are the best approximation of rank k. A
    step of the optimiser on A changes M by the length of B's columns, and one on B by that of A's rows: where both have
    the length sqrt(S), noise in the steps of all clients changes M the least. No row of A becomes shorter than the
    shortest one of the ``model``, c: what is hardly learned yet would be learned too slowly. A direction that is not
    learned at all keeps the model's row of A, or gets a random one, with zeros in B.
    """
    m = coefficients * layers.lengths
    many, high, wide = m.shape[1], layers.columns.shape[1], layers.rows.shape[2]
    total = ((m[:, None] @ (layers.along * layers.across)).squeeze(1) * m).sum(dim=1).clamp(min=0.0)
    empty = layers.widths == 0
    factor = torch.linalg.cholesky(layers.across + torch.diag_embed(RIDGE * many + empty.double()))
    core = (factor.mT * m[:, None]) @ layers.along @ (m[:, :, None] * factor)
    vectors = torch.linalg.eigh(core).eigenvectors[:, :, -min(rank, many, high, wide) :].flip(2)
    spanned = torch.linalg.solve_triangular(factor.mT, vectors, upper=True) / (layers.widths + empty)[:, :, None]
    left = torch.linalg.qr(layers.columns @ spanned).Q
    right = ((left.mT @ layers.columns) * (coefficients * layers.scales)[:, None]) @ layers.rows
    singular = torch.linalg.vector_norm(right, dim=2)
    found = []
    for u, s, v, old in zip(left.numpy(), singular.numpy(), right.numpy(), model, strict=True):
        rows = np.linalg.norm(old.a.astype(np.float64), axis=1)
        length = min(rows, default=0.0) or 1.0
        fresh = np.random.default_rng(0).standard_normal((max(rank - old.rank, 0), wide))
        fresh *= length / np.linalg.norm(fresh, axis=1, keepdims=True)
        a, b = np.concatenate([old.a[:rank], fresh], dtype=np.float64), np.zeros((high, rank))
        alive = np.flatnonzero(s > DEAD * s.max())
        lengths = np.maximum(np.sqrt(s[alive]), length)
        a[alive], b[:, alive] = v[alive] * (lengths / s[alive])[:, None], u[:, alive] * (s[alive] / lengths)
        found.append(Factors(a, b))
    return found, float((total - singular.square().sum(dim=1)).clamp(min=0.0).sum()), float(total.sum())


def approximated(factors: Sequence[Factors], rank: int) -> list[Factors]:
    """The best approximations of pairs of factors of one shape at another rank, in float64; the first k rows and
    columns of each are that of rank k.

    >>> (made,) = approximated([Factors(np.eye(2), np.diag([1.0, 3.0]))], 1)
    >>> (made.b @ made.a).round(9).tolist()
    [[0.0, 0.0], [0.0, 3.0]]
    """
    layers = Layers.of(factors, (), 1.0, ())
    return truncated(layers, layers.combined(np.zeros((len(factors), 0))), rank, factors)[0]
