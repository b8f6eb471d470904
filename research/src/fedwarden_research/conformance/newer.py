"""The loops of newer rules, written from their papers as :mod:`fedwarden.conformance.golden` has the older ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

import numpy as np

from fedwarden.conformance.law import Array

from .golden import cosine, length, mean, norm_clipping, trimmed_mean


def foundationfl(rows: Array, m: int, b: int) -> Array:
    """A trimmed mean with m more copies of the row farthest from the extremes. Fang et al. (2025), equations 2 to 6.

    >>> foundationfl(np.array([[0.0], [1.0], [4.0], [9.0]]), m=2, b=1).tolist()
    [3.25]
    """
    high, low = (np.array([pick(column) for column in rows.T.tolist()]) for pick in (max, min))
    scores = [min(length(row - high), length(row - low)) for row in rows]
    chosen = rows[scores.index(max(scores))]
    return trimmed_mean(np.array([*rows, *[chosen] * m]), b)


def flame(rows: Array, noise: float) -> Array:
    """Without its noise: the smallest majority by cosine, cut to the median length. Nguyen et al. (2022), algorithm 1.

    Clients closer than some distance are joined, for ever larger distances, until more than half hang together.

    >>> flame(np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 9.0], [-4.0, 0.0]]), noise=0.0).tolist()
    [0.0, 2.0]
    """
    assert noise == 0, "a loop has no seed"
    n = len(rows)
    apart = [[1 - cosine(a, b) for b in rows] for a in rows]
    for limit in sorted(apart[i][j] for i in range(n) for j in range(i)):
        for start in range(n):
            group, last = {start}, 0
            while len(group) > last:
                last = len(group)
                group |= {j for i in group for j in range(n) if apart[i][j] <= limit}
            if len(group) > n // 2:
                lengths = [length(row) for row in rows]
                return norm_clipping(rows[sorted(group)], float(np.median(lengths)))
    raise ValueError(f"flame needs n >= 2 clients; got n={n}")


def alignins(rows: Array, share: float, angle: float, signs: float, model: Array | None = None) -> Array:
    """The rows whose cosine with the model and whose signs are near the median, cut to the median length of them.

    Xu et al. (2025), algorithm 1. Scores whose deviation is 1e-9 are equal, and a limit is met to 1e-9.

    >>> alignins(np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [-9.0, -9.0]]), 0.5, 1.0, 1.0).tolist()
    [1.0, 2.0]
    """
    k = int(share * rows.shape[1])
    theta = np.zeros(rows.shape[1]) if model is None else model
    most = np.sign([sum(np.sign(column).tolist()) for column in rows.T])
    agree = []
    for row in rows:
        largest = sorted(range(len(row)), key=lambda j: -abs(row[j]))[:k]
        agree.append(sum(float(np.sign(row[j]) == most[j]) for j in largest) / k)
    left = set(range(len(rows)))
    for scores, limit in (([cosine(row, theta) for row in rows], angle), (agree, signs)):
        middle, average = float(np.median(scores)), sum(scores) / len(scores)
        spread = math.sqrt(sum((score - average) ** 2 for score in scores) / len(scores))
        left -= {i for i, score in enumerate(scores) if spread > 1e-9 and abs(score - middle) / spread > limit + 1e-9}
    if not left:
        return np.zeros(rows.shape[1])
    chosen = rows[sorted(left)]
    return norm_clipping(chosen, float(np.median([length(row) for row in chosen])))


def two_means(rows: Array) -> tuple[list[int], list[int]]:
    """The two clusters of k-means, started from each row and the one farthest from it. Lloyd (1982).

    >>> two_means(np.array([[0.0], [9.0], [1.0], [8.0]]))
    ([0, 2], [1, 3])
    """
    best, least = ([0], list(range(1, len(rows)))), math.inf
    for start in rows:
        apart = [length(row - start) for row in rows]
        centres = [start, rows[apart.index(max(apart))]]
        groups: tuple[list[int], list[int]] = ([], [])
        while True:
            nearer = [length(row - centres[0]) < length(row - centres[1]) for row in rows]
            found = [i for i, yes in enumerate(nearer) if yes], [i for i, yes in enumerate(nearer) if not yes]
            if found == groups or not all(found):
                break
            groups, centres = found, [mean(rows[group]) for group in found]
        total = sum(length(rows[i] - centre) ** 2 for group, centre in zip(groups, centres, strict=True) for i in group)
        if all(groups) and total < least - 1e-9 * abs(total):
            best, least = groups, total
    return best


def lfighter(rows: Array, classes: int, features: int) -> Array:
    """The mean of the larger and less alike cluster by the two output neurons that moved most. Jebreel et al. (2024).

    The last values of a row are the output layer's weight, neuron by neuron, and its bias.

    >>> honest, flipped = [[3.0, 0.0, 0.0], [3.0, -3.0, 3.0], [0.0, -3.0, 0.0]], [[-2.0, 2.0, 0.0]] * 2
    >>> lfighter(np.array([row + [0.0] for row in honest + flipped]), classes=2, features=1).tolist()
    [2.0, -2.0, 1.0, 0.0]
    """
    layer, moved = rows[:, rows.shape[1] - classes * (features + 1) :], []
    for c in range(classes):
        weights, biases = layer[:, c * features : (c + 1) * features], layer[:, classes * features + c]
        moved.append(sum(length(weight) + abs(float(bias)) for weight, bias in zip(weights, biases, strict=True)))
    neurons = sorted(range(classes), key=lambda c: -moved[c])[:2]
    data = np.array([np.concatenate([row[c * features : (c + 1) * features] for c in neurons]) for row in layer])
    scores = []
    for group in two_means(data):
        lowest = [min([1.0, *(cosine(data[i], data[j]) for j in group if j != i)]) for i in group]
        scores.append((len(group) / len(rows) * (1 - sum(lowest) / len(group)), len(group), group))
    return mean(rows[max(scores)[2]])


def caf(rows: Array, f: int) -> Array:
    """The mean of least variance that a filter passes through. Allouah, Guerraoui and Stephan (2025), algorithm 2.

    A client whose weight is 0 has no say in the largest tau.

    >>> caf(np.array([[1.0, 2.0], [4.0, 5.0], [7.0, 8.0]]), f=1).round(9).tolist()
    [4.0, 5.0]
    """
    c, least, best = [1.0] * len(rows), math.inf, mean(rows)
    while sum(c) > len(rows) - 2 * f:
        centre = sum((w * row for w, row in zip(c, rows, strict=True)), np.zeros(rows.shape[1])) / sum(c)
        spread = np.zeros((rows.shape[1], rows.shape[1]))
        for w, row in zip(c, rows, strict=True):
            spread = spread + w * np.outer(row - centre, row - centre) / sum(c)
        values, vectors = np.linalg.eigh(spread)
        if values[-1] < least:
            least, best = float(values[-1]), centre
        tau = [float(((row - centre) * vectors[:, -1]).sum()) ** 2 for row in rows]
        largest = max(t for t, w in zip(tau, c, strict=True) if w > 0)
        if largest == 0:
            break
        c = [w * (1 - t / largest) if w > 0 else 0.0 for w, t in zip(c, tau, strict=True)]
    return np.asarray(best)


def smea(rows: Array, f: int) -> Array:
    """The mean of the n - f rows whose covariance has the smallest largest eigenvalue. Allouah et al. (2023), SMEA.

    >>> smea(np.array([[1.0, 2.0], [4.0, 5.0], [70.0, 80.0]]), f=1).tolist()
    [2.5, 3.5]
    """
    best, least = rows, math.inf
    for subset in combinations(range(len(rows)), len(rows) - f):
        chosen = rows[list(subset)]
        singular = np.linalg.svd(chosen - mean(chosen), compute_uv=False)
        if singular[0] ** 2 / len(chosen) < least:
            best, least = chosen, float(singular[0]) ** 2 / len(chosen)
    return mean(best)


def dnc(rows: Array, f: int, c: float = 1.0, samples: Sequence[Sequence[int]] | None = None) -> Array:
    """The mean of the rows that no sample of coordinates puts among the c f farthest out along its main direction.

    Shejwalkar and Houmansadr (2021), algorithm 2; one sample of all coordinates where none are given.

    >>> dnc(np.array([[0.0], [1.0], [2.0], [9.0], [1.0]]), f=1).tolist()
    [1.0]
    """
    good = set(range(len(rows)))
    for columns in samples or [range(rows.shape[1])]:
        part = rows[:, list(columns)]
        centred = part - mean(part)
        top = np.linalg.svd(centred, full_matrices=False)[2][0]
        outlying = [float((row * top).sum()) ** 2 for row in centred]
        order = sorted(range(len(rows)), key=outlying.__getitem__)
        good &= set(order[: len(rows) - math.ceil(c * f)])
    return mean(rows[sorted(good)])
