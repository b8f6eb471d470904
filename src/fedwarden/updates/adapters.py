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
from scipy.linalg import eigh, solve_triangular
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
class Layer:
    """The factors of one layer in one round, as R rank-one products of a column and a row.

        M = sum_k m_k s_k b_k a_k^T,   <M, M'> = (m l)^T [cos(a, a) o cos(b, b)] (m' l),   l_k = s_k |a_k| |b_k|

    ``rows`` (R, d_in) has the a_k, ``columns`` (d_out, R) the b_k and ``scales`` the s_k; the global model's are first.
    ``lengths`` are the l_k, ``widths`` the |b_k|, ``along`` and ``across`` the cosines between rows and between
    columns. Row i of ``updates`` (n, R) has the coefficients m of client i's update. With cosines, A / c and c B give
    the same result as A and B, up to the last digits.
    """

    rows: Tensor
    columns: Tensor
    scales: Numbers
    lengths: Numbers
    widths: Numbers
    along: Numbers
    across: Numbers
    updates: Numbers
    rank: int

    @classmethod
    def of(cls, model: Factors, clients: Sequence[Factors], scale: float, scales: Sequence[float]) -> Layer:
        """A layer of the global model and of the clients, each with its scale.

        The update of a client of a smaller rank is its difference from the model's first products: these are the best
        approximation of that rank, which the client started from.
        """
        everyone = [model, *clients]
        rows = torch.cat([torch.from_numpy(np.ascontiguousarray(f.a)) for f in everyone]).double()
        columns = torch.cat([torch.from_numpy(np.ascontiguousarray(f.b)) for f in everyone], dim=1).double()
        along, lengths = _cosines(rows @ rows.T)
        across, widths = _cosines(columns.T @ columns)
        ranks = [f.rank for f in everyone]
        each, stops = np.repeat([scale, *scales], ranks), np.cumsum(ranks)
        updates = np.zeros((len(clients), stops[-1]))
        for update, stop, rank in zip(updates, stops[1:], ranks[1:], strict=True):
            update[: min(rank, ranks[0])] = -1.0
            update[stop - rank : stop] = 1.0
        return cls(rows, columns, each, each * lengths * widths, widths, along, across, updates, ranks[0])

    def products(self) -> tuple[Numbers, Numbers]:
        """The inner products of all updates (n, n), and a bound on the rounding error of each squared length (n,)."""
        pairs = self.along * self.across * np.outer(self.lengths, self.lengths)
        parts = np.abs(self.updates)
        return self.updates @ pairs @ self.updates.T, ROUNDING * ((parts @ np.abs(pairs)) * parts).sum(axis=1)

    def combined(self, coefficients: Numbers) -> Numbers:
        """The coefficients of the global model plus a combination of the updates."""
        return (np.arange(len(self.scales)) < self.rank) + coefficients @ self.updates


def _cosines(products: Tensor) -> tuple[Numbers, Numbers]:
    """The cosines of vectors (0 for zero vectors) and their lengths, from their inner products."""
    found = products.numpy()
    lengths = np.sqrt(np.diag(found))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return found * np.outer(inverse, inverse), lengths


def coordinates(products: Numbers, rounding: Numbers) -> tuple[Numbers, Numbers]:
    """Rows x (n, n) with these inner products, and the inverse V (n, n): u V combines the updates to the vector u.

        K = S C S, S the lengths;   C = W L W^T;   x = S W L^(1/2);   V = L^(-1/2) W^T S^(-1)

    Lengths are divided out first, so that one very long update costs the others no precision. An update whose squared
    length is at most its ``rounding`` becomes exactly 0: the client returned the model, in any factors, and is idle.

    >>> x, back = coordinates(np.array([[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1e-20]]), np.full(3, 1e-15))
    >>> (x @ x.T).round(9).tolist()
    [[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    >>> ((x[0] + x[1]) @ back).round(9).tolist()  # rows 0 and 1, each once
    [1.0, 1.0, 0.0]
    """
    squares = np.diag(products)
    lengths = np.sqrt(np.where(squares > rounding, squares, 0.0))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    values, vectors = np.linalg.eigh(products * np.outer(inverse, inverse))
    roots = np.sqrt(np.where(values > len(lengths) * np.finfo(np.float64).eps, values, 0.0))
    back = np.divide(vectors, roots, out=np.zeros_like(vectors), where=roots > 0).T * inverse
    return lengths[:, None] * vectors * roots, back


def truncated(layer: Layer, coefficients: Numbers, rank: int, model: Factors) -> tuple[Factors, float, float]:
    """The best approximation of rank r, the squared length that it leaves out, and the whole squared length.

        M = U S V^T;   A = c V_r^T,   B = U_r S_r / c

    Singular values are in descending order, so the first k rows and columns are the best approximation of rank k. All
    rows of A get the length c, the root mean square of those of the ``model``: with balanced factors, both of length
    sqrt(S), clients would make the smallest steps of all factors with the same product. A direction that is not learned
    yet keeps the model's row of A, or gets a random one, with zeros in B, so that it can be learned.
    """
    m = coefficients * layer.lengths
    some = np.flatnonzero(m)
    m, along, across = m[some], layer.along[np.ix_(some, some)], layer.across[np.ix_(some, some)]
    length = float(min(np.linalg.norm(model.a.astype(np.float64), axis=1), default=0.0)) or 1.0
    a, b = np.random.default_rng(0).standard_normal((rank, model.a.shape[1])), np.zeros((len(model.b), rank))
    a *= length / np.linalg.norm(a, axis=1, keepdims=True)
    a[: model.rank] = model.a[:rank]
    total, k = float(m @ (along * across) @ m), min(rank, len(m), layer.rows.shape[1], len(layer.columns))
    if not k or total <= 0:
        return Factors(a, b), 0.0, max(total, 0.0)
    factor = np.linalg.cholesky(across + RIDGE * len(m) * np.eye(len(m)))
    _, vectors = eigh((factor.T * m) @ along @ (m[:, None] * factor), subset_by_index=[len(m) - k, len(m) - 1])
    spanned = np.zeros((len(layer.scales), k))  # in units of the columns, not normalised
    spanned[some] = solve_triangular(factor.T, vectors[:, ::-1]) / layer.widths[some, None]
    left = torch.linalg.qr(layer.columns @ torch.from_numpy(spanned)).Q
    right = ((left.T @ layer.columns) * torch.from_numpy(coefficients * layer.scales)) @ layer.rows
    singular = torch.linalg.vector_norm(right, dim=1)
    alive = np.flatnonzero((singular > DEAD * singular.max()).numpy())
    lengths = singular[alive].sqrt().clamp(min=length)
    a[alive] = (lengths[:, None] * right[alive] / singular[alive, None]).numpy()
    b[:, alive] = (left[:, alive] * (singular[alive] / lengths)).numpy()
    return Factors(a, b), max(total - float(singular.square().sum()), 0.0), total


def approximated(factors: Factors, rank: int) -> Factors:
    """The best approximation of one pair of factors at another rank, in float64; its first k rows and columns are that
    of rank k.

    >>> made = approximated(Factors(np.eye(2), np.diag([1.0, 3.0])), 1)
    >>> (made.b @ made.a).round(9).tolist()
    [[0.0, 0.0], [0.0, 3.0]]
    """
    layer = Layer.of(factors, (), 1.0, ())
    return truncated(layer, layer.combined(np.zeros(0)), rank, factors)[0]
