"""Every rule as plain float64 loops written from its paper: slow, short, and the measure of the fast ones.

Rows are (n, d), results (d,). Nothing here is shared with the aggregators, so that a mistake cannot be in both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from fedwarden.conformance.law import Array


def mean(rows: Array) -> Array:
    """The mean of the rows. McMahan et al. (2017), algorithm 1, equal counts.

    >>> mean(np.array([[1.0], [4.0]])).tolist()
    [2.5]
    """
    return np.asarray(rows.mean(axis=0))


def median(rows: Array) -> Array:
    """Per coordinate the middle value; for even n the middle of the two. Yin et al. (2018), definition 1.

    >>> median(np.array([[1.0], [2.0], [5.0], [100.0]])).tolist()
    [3.5]
    """
    return np.asarray(np.median(rows, axis=0))


def trimmed_mean(rows: Array, b: int) -> Array:
    """Per coordinate, the mean without the b largest and b smallest values. Yin et al. (2018), definition 2.

    >>> trimmed_mean(np.array([[1.0], [2.0], [4.0], [100.0]]), b=1).tolist()
    [3.0]
    """
    return mean(np.sort(rows, axis=0)[b : len(rows) - b])


def krum_scores(rows: Array, neighbours: int) -> list[float]:
    """The sum of squared distances to the nearest other rows, n - f - 2 of them. Blanchard et al. (2017), section 4.

    >>> krum_scores(np.array([[0.0], [1.0], [3.0], [9.0]]), neighbours=1)
    [1.0, 1.0, 4.0, 36.0]
    """
    scores = []
    for i, a in enumerate(rows):
        squares = sorted(float(((a - b) ** 2).sum()) for j, b in enumerate(rows) if j != i)
        scores.append(sum(squares[:neighbours]))
    return scores


def ranking(rows: Array, neighbours: int) -> list[int]:
    """The rows from the lowest score on. Of equal scores, as of the closest pair with one neighbour, one more decides.

    >>> ranking(np.array([[0.0], [1.0], [3.0], [9.0]]), neighbours=1)
    [1, 0, 2, 3]
    """
    scores, more = krum_scores(rows, neighbours), krum_scores(rows, neighbours + 1)
    return sorted(range(len(rows)), key=lambda i: (scores[i], more[i]))


def krum(rows: Array, f: int) -> Array:
    """The row with the lowest score. Blanchard et al. (2017), section 4.

    >>> krum(np.array([[0.0], [1.0], [1.5], [4.0], [90.0]]), f=1).tolist()
    [1.0]
    """
    return np.array(rows[ranking(rows, len(rows) - f - 2)[0]])


def multi_krum(rows: Array, f: int, m: int) -> Array:
    """The mean of the m rows with the lowest scores. Blanchard et al. (2017), Multi-Krum.

    >>> multi_krum(np.array([[0.0], [1.0], [1.5], [4.0], [90.0]]), f=1, m=2).tolist()
    [1.25]
    """
    return mean(rows[ranking(rows, len(rows) - f - 2)[:m]])


def bulyan(rows: Array, f: int) -> Array:
    """Krum again and again for theta = n - 2f rows, then per coordinate the beta = theta - 2f nearest the median.

    El Mhamdi et al. (2018), section 4. Each pick leaves the set before the next one; among the last few rows at least
    one neighbour is counted.

    >>> bulyan(np.array([[0.0], [1.0], [1.5], [2.5], [4.0], [6.0], [90.0]]), f=1).round(6).tolist()
    [1.666667]
    """
    left, picked = list(range(len(rows))), []
    for _ in range(len(rows) - 2 * f):
        picked.append(left.pop(ranking(rows[left], max(len(left) - f - 2, 1))[0]))
    chosen = rows[picked]
    centre, beta = median(chosen), len(picked) - 2 * f
    out = []
    for k in range(rows.shape[1]):
        nearest = sorted(chosen[:, k].tolist(), key=lambda value: abs(value - centre[k]))[:beta]
        out.append(sum(nearest) / beta)
    return np.array(out)


def geometric_median(rows: Array) -> Array:
    """The point with the least sum of distances. Weiszfeld (1937); Pillutla et al. (2022), RFA.

    A row is the answer where the pull of the others on it is at most the number of clients that sent it (Kuhn, 1973);
    elsewhere the iteration runs until it stands still.

    >>> geometric_median(np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).round(9).tolist()
    [0.5, 0.5]
    """
    for a in rows:
        others = [b - a for b in rows if length(b - a) > 0]
        pull = sum((b / length(b) for b in others), np.zeros(rows.shape[1]))
        if length(pull) <= len(rows) - len(others):
            return np.array(a)
    z = mean(rows)
    for _ in range(10_000):
        inverse = [1 / max(length(row - z), 1e-300) for row in rows]
        new = sum((w * row for w, row in zip(inverse, rows, strict=True)), np.zeros(rows.shape[1])) / sum(inverse)
        if float(np.abs(new - z).max()) <= 1e-12 * max(1.0, float(np.abs(z).max())):
            break
        z = new
    return np.asarray(z)


def sign(rows: Array, step_size: float) -> Array:
    """The sign that most clients have, times the server's step. Bernstein et al. (2019), algorithm 1.

    >>> sign(np.array([[1.0, -5.0], [2.0, 1.0], [-9.0, -1.0]]), step_size=0.5).tolist()
    [0.5, -0.5]
    """
    votes = [sum((value > 0) - (value < 0) for value in column.tolist()) for column in rows.T]
    return np.array([step_size * ((vote > 0) - (vote < 0)) for vote in votes])


def norm_clipping(rows: Array, limit: float) -> Array:
    """The mean of the rows cut to a length of at most ``limit``. Sun et al. (2019), norm thresholding.

    >>> norm_clipping(np.array([[0.0, 4.0], [2.0, 0.0]]), limit=2.0).tolist()
    [1.0, 1.0]
    """
    return mean(np.array([row * min(1.0, limit / (length(row) or limit)) for row in rows]))


def centered_clipping(rows: Array, limit: float, steps: int, centre: Array | None = None) -> Array:
    """The centre moved by the mean of the differences, each cut to ``limit``. Karimireddy et al. (2021), algorithm 2.

    >>> centered_clipping(np.array([[1.0], [1.0], [100.0]]), limit=4.0, steps=1).tolist()
    [2.0]
    """
    v = np.zeros(rows.shape[1]) if centre is None else centre
    for _ in range(steps):
        moves = [(row - v) * min(1.0, limit / (length(row - v) or limit)) for row in rows]
        v = v + mean(np.array(moves))
    return v


def cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two vectors; 0 where one of them is zero.

    >>> cosine(np.array([1.0, 0.0]), np.array([2.0, 0.0]))
    1.0
    """
    lengths = length(a) * length(b)
    return float((a * b).sum()) / lengths if lengths > 0 else 0.0


def fltrust(rows: Array, root: Array) -> Array:
    """Rows brought to the root's length and weighted by their cosine to it, where positive. Cao et al. (2021), eq. 4.

    >>> fltrust(np.array([[0.0, 7.0], [-9.0, 0.0], [2.0, 0.0]]), root=np.array([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    trust = [max(0.0, cosine(row, root)) for row in rows]
    total = np.zeros(rows.shape[1])
    for weight, row in zip(trust, rows, strict=True):
        if weight > 0:
            total = total + weight * length(root) / length(row) * row
    return total / sum(trust) if sum(trust) > 0 else total


def foolsgold_weights(history: Array, kappa: float = 1.0) -> list[float]:
    """Low for clients that point the same way over the rounds. Fung et al. (2020), algorithm 1.

    A cosine below zero is no likeness: it counts as zero where the largest one is sought.

    >>> foolsgold_weights(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]))
    [0.0, 0.0, 1.0]
    """
    n = len(history)
    similar = [[cosine(history[i], history[j]) if i != j else 0.0 for j in range(n)] for i in range(n)]
    most = [max(0.0, *similar[i]) for i in range(n)]
    for i in range(n):
        for j in range(n):
            if most[j] > most[i]:
                similar[i][j] *= most[i] / most[j]
    closest = [max(0.0, *similar[i]) for i in range(n)]
    weights = [min(1.0, max(0.0, 1 - value)) for value in closest]
    largest = max(weights)
    if largest <= 0:
        return [0.0] * n
    out = []
    for weight in weights:
        share = weight / largest
        logit = -math.inf if share <= 0 else math.inf if share >= 1 else math.log(share / (1 - share))
        out.append(min(1.0, max(0.0, kappa * (logit + 0.5))))
    return out


def foolsgold(rows: Array) -> Array:
    """The mean weighted by FoolsGold, first round: the history is the update itself.

    >>> foolsgold(np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.0, 1.0]
    """
    weights = foolsgold_weights(rows)
    total = sum((w * row for w, row in zip(weights, rows, strict=True)), np.zeros(rows.shape[1]))
    return np.asarray(total / sum(weights) if sum(weights) > 0 else total)


def bipartition(rows: Array) -> tuple[list[int], list[int]]:
    """The split in two whose largest cosine across the groups is least, found by trying all. Sattler et al. (2020).

    >>> bipartition(np.array([[1.0, 0.0], [1.0, 0.1], [-1.0, 0.0], [1.0, -0.1]]))
    ([0, 1, 3], [2])
    """
    n = len(rows)
    similar = [[cosine(a, b) for b in rows] for a in rows]
    best, least = None, math.inf
    for size in range(1, n // 2 + 1):
        for small in combinations(range(n), size):
            large = [i for i in range(n) if i not in small]
            across = max(similar[i][j] for i in small for j in large)
            if across < least:
                best, least = (large, list(small)), across
    assert best is not None
    return best


def clustered(rows: Array) -> Array:
    """The mean of the larger of the two groups of the bipartition. Sattler et al. (2020).

    >>> clustered(np.array([[1.0, 0.0], [1.0, 0.25], [-1.0, 0.0], [1.0, -0.25]])).tolist()
    [1.0, 0.0]
    """
    return mean(rows[bipartition(rows)[0]])


def nearest_neighbour_mixing(rows: Array, f: int, then: Callable[[Array], Array]) -> Array:
    """Every row replaced by the mean of its n - f nearest, itself included, then a rule. Allouah et al. (2023), alg. 2.

    >>> nearest_neighbour_mixing(np.array([[0.0], [2.0], [90.0]]), f=1, then=median).tolist()
    [1.0]
    """
    mixed = []
    for a in rows:
        order = sorted(range(len(rows)), key=lambda j: float(((a - rows[j]) ** 2).sum()))
        mixed.append(mean(rows[order[: len(rows) - f]]))
    return then(np.array(mixed))


def bucketing(rows: Array, s: int, order: Sequence[int], then: Callable[[Array], Array]) -> Array:
    """The rows in the given order averaged s at a time, then a rule. Karimireddy et al. (2022), algorithm 1.

    >>> bucketing(np.array([[0.0], [2.0], [4.0], [90.0], [8.0]]), s=2, order=[0, 1, 3, 2, 4], then=median).tolist()
    [8.0]
    """
    buckets = [mean(rows[list(order[at : at + s])]) for at in range(0, len(rows), s)]
    return then(np.array(buckets))


def length(row: Any) -> float:
    return math.sqrt(float((row**2).sum()))


def arc(rows: Array, f: int, then: Callable[[Array], Array]) -> Array:
    """The k longest rows cut to the length of the next, then a rule. Allouah et al. (2025), Adaptive Robust Clipping.

    >>> arc(np.array([[0.0, 4.0], [2.0, 0.0], [-1.0, 0.0]]), f=1, then=mean).round(6).tolist()
    [0.333333, 0.666667]
    """
    n = len(rows)
    k = (2 * f * (n - f)) // n
    limit = sorted((length(row) for row in rows), reverse=True)[k]
    return then(np.array([row * min(1.0, limit / (length(row) or 1.0)) for row in rows]))
