"""Low-rank adapters: what a pair of factors does to its layer, judged and combined without the layer's own matrix.

A client's factors are A (r, d_in) and B (d_out, r); with the scale s they add s B A to the weights of the layer.
Clients may have different ranks, and the same product has many pairs of factors, so only products are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.linalg import eigh
from torch import Tensor

Numbers = NDArray[np.float64]
ROUNDING = 1e-13  # of a squared length: what is left of two equal products in float32 is 3e-15 of it for every rank
RIDGE = 1e-14  # of unit rows, so that a Cholesky factor exists; rounding leaves as much
DEAD = 1e-7  # of the largest singular value: rounding, and no direction that was learned


class Factors(NamedTuple):
    """The two factors of one layer, A (r, d_in) and B (d_out, r); more dimensions, as of a convolution, are joined."""

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
    """The factors of one layer in one round, as R products of a unit column and a unit row.

        M = sum_k m_k sizes_k b_k a_k^T,   <M, M'> = (m sizes)^T [(A A^T) o (B^T B)] (m' sizes)

    ``rows`` (R, d_in) has the a_k and ``columns`` (R, d_out) the b_k, the global model's first, with the inner
    products ``row_products`` and ``column_products`` among them. Row i of ``updates`` (n, R) has the coefficients m of
    client i's update. Because rows and columns have length 1, factors that are multiplied and divided by the same
    number are the same layer to the last digits.
    """

    rows: Tensor
    columns: Tensor
    row_products: Tensor
    column_products: Tensor
    sizes: Numbers
    updates: Numbers
    rank: int

    @classmethod
    def of(cls, model: Factors, clients: Sequence[Factors], scale: float, scales: Sequence[float]) -> Layer:
        """A layer of the global model and of the clients, each with its scale.

        The update of a client whose rank is smaller than the model's is measured from the model's first products: the
        best approximation of that rank, which such a client starts from.
        """
        everyone = [model, *clients]
        rows = torch.cat([torch.from_numpy(np.ascontiguousarray(f.a)) for f in everyone]).double()
        columns = torch.cat([torch.from_numpy(np.ascontiguousarray(f.b.T)) for f in everyone]).double()
        along, across = (torch.linalg.vector_norm(x, dim=1) for x in (rows, columns))
        rows /= torch.where(along > 0, along, 1.0)[:, None]
        columns /= torch.where(across > 0, across, 1.0)[:, None]
        ranks = [f.rank for f in everyone]
        sizes = (along * across).numpy() * np.repeat([scale, *scales], ranks)
        stops = np.cumsum(ranks)
        updates = np.zeros((len(clients), stops[-1]))
        for update, stop, rank in zip(updates, stops[1:], ranks[1:], strict=True):
            update[: min(rank, ranks[0])] = -1.0
            update[stop - rank : stop] = 1.0
        return cls(rows, columns, rows @ rows.T, columns @ columns.T, sizes, updates, ranks[0])

    @property
    def model(self) -> Numbers:
        """The coefficients of the global model."""
        return np.asarray(np.arange(len(self.sizes)) < self.rank, np.float64)

    def products(self) -> tuple[Numbers, Numbers]:
        """The inner products of all updates (n, n), and what rounding may make of each squared length (n,)."""
        pairs = (self.row_products * self.column_products).numpy() * np.outer(self.sizes, self.sizes)
        parts = np.abs(self.updates)
        return self.updates @ pairs @ self.updates.T, ROUNDING * ((parts @ np.abs(pairs)) * parts).sum(axis=1)

    def combined(self, coefficients: Numbers) -> Numbers:
        """The coefficients of the global model with a combination of the updates on top."""
        return self.model + coefficients @ self.updates


def coordinates(products: Numbers, rounding: Numbers) -> tuple[Numbers, Numbers]:
    """Rows x (n, n) with these inner products, and the inverse V (n, n): u V combines the updates to the vector u.

        K = S C S, S the lengths;   C = W L W^T;   x = S W L^(1/2);   V = L^(-1/2) W^T S^(-1)

    The lengths come off first, so that one very long update costs the others no digits. An update no longer than its
    ``rounding`` is exactly 0: a client that sends the model back, in whatever factors, is idle.

    >>> x, back = coordinates(np.array([[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 1e-20]]), np.full(3, 1e-15))
    >>> (x @ x.T).round(9).tolist()
    [[4.0, 2.0, 0.0], [2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]
    >>> (((x[0] + x[1]) @ back) @ x - x[0] - x[1]).round(9).tolist()
    [0.0, 0.0, 0.0]
    """
    squares = np.diag(products)
    lengths = np.sqrt(np.where(squares > rounding, squares, 0.0))
    inverse = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    values, vectors = np.linalg.eigh(products * np.outer(inverse, inverse))
    roots = np.sqrt(np.where(values > len(lengths) * np.finfo(np.float64).eps, values, 0.0))
    back = np.divide(vectors, roots, out=np.zeros_like(vectors), where=roots > 0).T * inverse
    return lengths[:, None] * vectors * roots, back


def truncated(layer: Layer, coefficients: Numbers, rank: int, model: Factors) -> tuple[Factors, float, float]:
    """The best approximation of some rank in balanced order, the squared length that it leaves out, and all of it.

        M = U S V^T;   A = c V_r^T,   B = U_r S_r / c

    Largest singular values come first, so that the first k rows and columns are the best approximation of rank k. The
    rows of A keep the length c that those of the ``model`` have, as a mean square: in balanced factors, both of length
    sqrt(S), the step of a client would be the shortest of all that lead to the same product. A direction that nobody
    has learned yet keeps its row of the model, or gets one that is drawn, with zeros in B, so that it can be learned.
    """
    m = torch.from_numpy(coefficients * layer.sizes)
    some = m != 0
    m, rows, columns = m[some], layer.rows[some], layer.columns[some]
    down, across = layer.row_products[some][:, some], layer.column_products[some][:, some]
    length = float(np.sqrt(np.square(model.a, dtype=np.float64).sum() / max(model.rank, 1))) or 1.0
    a, b = np.random.default_rng(0).standard_normal((rank, model.a.shape[1])), np.zeros((len(model.b), rank))
    a *= length / np.linalg.norm(a, axis=1, keepdims=True)
    a[: model.rank] = model.a[:rank]
    total, k = float(m @ (down * across) @ m), min(rank, *rows.shape, *columns.shape)
    if not k or total <= 0:
        return Factors(a, b), 0.0, max(total, 0.0)
    factor = torch.linalg.cholesky(across + RIDGE * len(m) * torch.eye(len(m), dtype=m.dtype))
    core = (factor.T * m) @ down @ (m[:, None] * factor)
    _, vectors = eigh(core.numpy(), subset_by_index=[len(m) - k, len(m) - 1])
    spanned = torch.linalg.solve_triangular(factor.T, torch.from_numpy(vectors[:, ::-1].copy()), upper=True)
    left = torch.linalg.qr(columns.T @ spanned).Q
    right = ((left.T @ columns.T) * m) @ rows
    singular = torch.linalg.vector_norm(right, dim=1)
    alive = np.flatnonzero((singular > DEAD * singular.max()).numpy())
    a[alive] = (length * right[alive] / singular[alive, None]).numpy()
    b[:, alive] = (left[:, alive] * (singular[alive] / length)).numpy()
    return Factors(a, b), max(total - float(singular.square().sum()), 0.0), total


def approximated(factors: Factors, rank: int) -> Factors:
    """The best approximation of one pair of factors at another rank, in float64; its first rows and columns are those
    of smaller ranks.

    >>> made = approximated(Factors(np.eye(2), np.diag([1.0, 3.0])), 1)
    >>> (made.b @ made.a).round(9).tolist()
    [[0.0, 0.0], [0.0, 3.0]]
    """
    layer = Layer.of(factors, (), 1.0, ())
    return truncated(layer, layer.model, rank, factors)[0]
