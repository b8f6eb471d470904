"""Geometry of the rows from their (n, n) Gram matrix, so that its cost does not grow with d."""

from __future__ import annotations

from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.sparse.linalg import ArpackError, eigsh

from ..core.stats import Mask, Norms, Scores, Weights

ALIKE, SAME = 0.02, 0.001  # how near copies are, as a part of their length; the second where they are half of all
SPREAD = 5.0  # times nearer than clients usually are
MANY = 256  # rows from which on a few eigenvectors are found faster one by one; two of 200 take 3.4 ms so, and 2.4 not
FARTHER = 100.0  # times, in squares, that rows may lie farther from the origin of their products than from each other
LOOKED_AT = 64  # rows that tell so
TOLERANCE = 1e-6  # of their eigenvalues: in clients that agree on nothing, exact ones take twice the time


def distances_to(gram: NDArray[np.float64], weights: Weights) -> Scores:
    """Distance of every row to a combination of the rows, from inner products alone.

        ||x_i - sum_j a_j x_j||^2 = G_ii - 2 (G a)_i + a' G a

    ``gram`` is that of centred rows and ``weights`` sum to 1.

    >>> distances_to(np.diag([1.0, 1.0]), np.array([1.0, 0.0])).round(6).tolist()
    [0.0, 1.414214]
    """
    product = gram @ weights
    squares = np.diag(gram) - 2 * product + weights @ product
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)), dtype=np.float64)


def geometric_median(
    gram: NDArray[np.float64], shares: Weights, smoothing: float = 1e-6, tolerance: float = 1e-10, steps: int = 1000
) -> Scores:
    """Weights a of the rows whose combination minimises the shares-weighted sum of distances.

        z = argmin_z sum_i s_i ||x_i - z||;   a_i <- s_i / max(nu, ||x_i - z||), normalised

    Pillutla et al., Robust Aggregation for Federated Learning, arXiv 1912.13445, algorithm 2 (smoothed Weiszfeld).
    Differs from the paper: run to convergence, on the Gram matrix; nu is relative to the median distance.

    >>> square = np.array([[0., 0.], [0., 2.], [2., 0.], [2., 2.]]) - 1
    >>> geometric_median(square @ square.T, np.full(4, .25)).round(6).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    weights = shares / shares.sum()
    for _ in range(steps):
        distances = distances_to(gram, weights)
        floor = smoothing * float(np.median(distances))
        if floor == 0.0:
            floor = smoothing * float(distances.max())
        if floor == 0.0:
            return np.asarray(weights, dtype=np.float64)
        new = shares / np.maximum(distances, floor)
        new = new / new.sum()
        moved = float(np.abs(new - weights).sum())
        weights = new
        if moved < tolerance:
            break
    return np.asarray(weights, dtype=np.float64)


def squared_distances(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Squared distances between the rows, from their inner products about any point.

        ||x_i - x_j||^2 = G_ii + G_jj - 2 G_ij

    >>> squared_distances(np.diag([1.0, 4.0])).tolist()
    [[0.0, 5.0], [5.0, 0.0]]
    """
    squares = np.diag(gram)[:, None] + np.diag(gram)[None, :] - 2 * gram
    return np.asarray(np.maximum(squares, 0.0), dtype=np.float64)


def some_of(products: NDArray[np.float64], index: NDArray[np.int_]) -> NDArray[np.int_]:
    """These rows, but for those that are no numbers; of very many a part, drawn by what all of them sent."""
    own = np.diag(products)[index]
    finite = index[np.isfinite(own)]
    if len(finite) <= LOOKED_AT:
        return finite
    return np.sort(np.random.default_rng(crc32(own.tobytes())).choice(finite, LOOKED_AT, replace=False))


def to_others(squares: NDArray[np.float64], upper: bool = True) -> Norms:
    """The median squared distance of each row to the others, of two in the middle the larger if asked; 0 of one row.

    >>> squares = squared_distances(np.diag([0.0, 1.0, 9.0]))
    >>> to_others(squares).tolist(), to_others(squares, upper=False).tolist()
    ([9.0, 10.0, 10.0], [1.0, 1.0, 9.0])
    """
    n = len(squares)
    if n < 2:
        return np.zeros(n)
    others = off_diagonal(squares).reshape(n, n - 1)
    middle = (n - 1 if upper else n - 2) // 2
    return np.asarray(np.partition(others, middle, axis=1)[:, middle], dtype=np.float64)


def sharp(products: NDArray[np.float64], index: NDArray[np.int_]) -> bool:
    """Whether inner products about a row tell how far these rows lie from each other.

        median over i of ||x_i - o||^2 <= 100 median over i of the median over j of ||x_i - x_j||^2

    Of numbers with 24 bits, differences of rows that lie close together and far from ``o`` are what rounding left.

    >>> near = np.array([[0.0], [1.0], [2.0]])
    >>> [sharp((near - o) @ (near - o).T, np.arange(3)) for o in (1.0, 1e4)]
    [True, False]
    """
    some = some_of(products, index)
    if not len(some):
        return False
    inside = products[np.ix_(some, some)]
    return bool(np.median(np.diag(inside)) <= FARTHER * np.median(to_others(squared_distances(inside))))


def central(products: NDArray[np.float64], index: NDArray[np.int_]) -> int:
    """Of these rows the one that lies closest to the others.

    >>> central(np.outer([0.0, 4.0, 5.0, 9.0], [0.0, 4.0, 5.0, 9.0]), np.arange(4))
    1
    """
    some = some_of(products, index)
    squares = squared_distances(products[np.ix_(some, some)])
    return int(some[to_others(squares).argmin()]) if len(some) else int(index[0])


def centred(gram: NDArray[np.float64], shares: Weights) -> NDArray[np.float64]:
    """Inner products of the rows about their mean, from those about any point; ``shares`` of the mean sum to 1.

        K_ij = (x_i - mu)(x_j - mu) = G_ij - (G p)_i - (G p)_j + p' G p,   mu = sum_i p_i x_i

    >>> points = np.array([0.0, 1.0, 5.0])
    >>> centred(np.outer(points, points), np.full(3, 1 / 3)).round(6).tolist()
    [[4.0, 2.0, -6.0], [2.0, 1.0, -3.0], [-6.0, -3.0, 9.0]]
    """
    to_mean = gram @ shares
    return np.asarray(gram - to_mean[:, None] - to_mean[None, :] + shares @ to_mean, dtype=np.float64)


def largest(matrix: NDArray[np.float64], k: int, start: Scores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The k largest eigenvalues of a symmetric matrix in rising order, and their eigenvectors as columns.

    Of many rows by Lanczos's method from a given start: at n = 1,000 a fifth of the time of finding all of them. Where
    that fails, as on a matrix of zeros, they are found as those of few rows are.

    >>> largest(np.diag([3.0, 1.0, 2.0]), 2, np.ones(3))[0].tolist()
    [2.0, 3.0]
    """
    n = len(matrix)
    if n >= MANY:
        try:
            values, vectors = eigsh(matrix, k=k, which="LA", v0=start, tol=TOLERANCE)
            return values, vectors
        except ArpackError:
            pass
    values, vectors = eigh(matrix, subset_by_index=[n - k, n - 1])
    return values, vectors


def off_diagonal(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """What is not on the diagonal of a square matrix, row by row.

    >>> off_diagonal(np.arange(9.0).reshape(3, 3)).tolist()
    [1.0, 2.0, 3.0, 5.0, 6.0, 7.0]
    """
    return matrix[~np.eye(len(matrix), dtype=bool)]


def copy_leaders(squares: NDArray[np.float64], lengths: Norms, first: Mask) -> NDArray[np.int_]:
    """For every row the row that it is a copy of, which is itself for most.

        copies: ||x_i - x_j|| <= 0.02 min(||x_i||, ||x_j||)  and  <= m / 5,
        m = median over i of the lower median over j != i of ||x_i - x_j||

    Rows are taken from the one closest to the others on, those marked ``first`` before the rest; one that is no copy of
    an earlier one leads those that are copies of it. So whoever sends nearly what another sends, and lies farther out,
    does not lead. Less than half of the clients who copy one make at most (n + 1) / 2 rows that are alike: more than
    that agree of themselves, and are no copies. So may be a bare majority, which must therefore be alike to 0.001; m is
    then of upper medians, which it does not reach. Upper ones are what a bare minority sets, that lies far out.

    >>> points = np.array([[1.0, 0.0], [0.0, 1.0], [3.0, 2.0], [6.0, 1.0], [6.0, 1.0]])
    >>> squares = ((points[:, None] - points) ** 2).sum(axis=2)
    >>> copy_leaders(squares, np.linalg.norm(points, axis=1), np.array([True, True, True, False, True])).tolist()
    [0, 1, 2, 4, 4]
    """
    n = len(squares)
    leaders = np.arange(n)
    nearest = np.where(np.eye(n, dtype=bool), np.inf, squares).min(initial=np.inf)
    if nearest > (ALIKE * lengths.max(initial=0.0)) ** 2:  # as in most rounds: nobody copies
        return leaders
    distances, lower = to_others(squares), to_others(squares, upper=False)
    relative = squares / np.maximum(np.minimum.outer(lengths, lengths) ** 2, np.finfo(np.float64).tiny)
    radii = ((ALIKE, lower), (SAME, distances))
    near = np.any([(relative <= r**2) & (squares <= np.median(m) / SPREAD**2) for r, m in radii], axis=0)
    near = np.where(2 * near.sum(axis=1, keepdims=True) > n, near & (relative <= SAME**2), near)
    near &= 2 * near.sum(axis=1, keepdims=True) <= n + 1
    free = np.ones(n, bool)
    for i in np.lexsort((distances, ~first)):
        if free[i]:
            leaders[near[i] & free] = i
            leaders[i] = i
            free &= leaders != i
    return leaders


def cosines_to_others(products: NDArray[np.float64], weights: Weights) -> Scores:
    """Cosine of each row to the combination of the other rows, from their inner products; 0 where one has no length.

        x_i . m_i = (G w)_i - w_i G_ii,   ||m_i||^2 = w'G w - 2 w_i (G w)_i + w_i^2 G_ii,   m_i = sum_{j != i} w_j x_j

    >>> products = np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 2.0]])  # of (1, 0), (0, 1) and (1, 1)
    >>> cosines_to_others(products, np.array([0.5, 0.5, 0.0])).round(4).tolist()
    [0.0, 0.0, 1.0]
    """
    with_all, own = products @ weights, np.diag(products)
    inner = with_all - weights * own
    squares = weights @ with_all - 2 * weights * with_all + weights**2 * own
    scale = np.sqrt(np.maximum(squares, 0.0) * np.maximum(own, 0.0))
    some = scale > 1e-12 * float(scale.max(initial=0.0))
    return np.asarray(np.clip(np.where(some, inner, 0.0) / np.where(some, scale, 1.0), -1.0, 1.0), dtype=np.float64)


def cosines(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cosines of the angles between the rows, from their inner products; 0 with a row of length 0.

    >>> cosines(np.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    lengths = np.sqrt(np.maximum(np.diag(products), 0.0))
    scale = np.outer(lengths, lengths)
    safe = np.where(scale > 0, scale, 1.0)
    return np.asarray(np.where(scale > 0, np.clip(products / safe, -1.0, 1.0), 0.0), dtype=np.float64)


def planar(similarity: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rows as points of a plane in which those of like directions lie near one another: classical scaling.

        B = J C J,   J = I - 1/n,   C = the rows' cosines;   B v_k = l_k v_k;   (x, y) = (sqrt(l_1) v_1, sqrt(l_2) v_2)

    Torgerson (1952). Differs from it: of the two largest eigenvalues those that are not positive count as 0. Each axis
    points to the side on which few rows lie far out. Rows of one direction are one point.

    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [0.0, 3.0]])  # two directions, sqrt(2) apart
    >>> planar(cosines(rows @ rows.T))[:, 0].round(4).tolist()
    [1.0607, -0.3536, -0.3536, -0.3536]
    """
    n = len(similarity)
    if n < 2:
        return np.zeros((n, 2))
    start = np.cos(np.arange(n))  # not a constant, which the centred matrix takes to 0
    values, vectors = largest(centred(similarity, np.full(n, 1 / n)), 2, start)
    points = vectors[:, ::-1] * np.sqrt(np.maximum(values[::-1], 0.0))
    cubes = (points**3).sum(axis=0).round(9)  # of a pair of opposite clients 0, whichever way round
    first = points[np.abs(points).argmax(axis=0), (0, 1)]
    return np.asarray(points * np.where(np.where(cubes == 0, first, cubes) < 0, -1.0, 1.0), dtype=np.float64)
