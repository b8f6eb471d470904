"""Robust location and scale, shared by rules, policies and metrics."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Scores = NDArray[np.float64]
"""How suspicious each client is; higher = more."""

Weights = NDArray[np.float64]
"""How much each client counts, as a share or as a factor."""

Counts = NDArray[np.float64]
"""How many examples each client has, or says it has."""

Norms = NDArray[np.float64]
"""How long each client's update is, or how far from another; squared where a name begins with sq."""

Mask = NDArray[np.bool_]
"""Some of the clients."""

V = TypeVar("V", bound=np.generic)
EPS = 1e-12  # keeps equal values at zero
FARTHEST = 1e100  # that a value may be from others: its square is a number still


def number(value: Any) -> float:
    """Whatever a client sent for a number; NaN where it is none.

    >>> number(3), number("many")
    (3.0, nan)
    """
    try:
        return float(value)
    except Exception:  # a client makes the object, such as a tensor without numbers
        return math.nan


def mad(values: ArrayLike) -> float:
    """The median absolute deviation from the median, unscaled.

    >>> mad([1.0, 2.0, 3.0, 4.0, 100.0])
    1.0
    """
    x = np.asarray(values, dtype=np.float64)
    return float(np.median(np.abs(x - np.median(x))))


def robust_z(values: ArrayLike, eps: float = EPS, reference: ArrayLike | None = None) -> Scores:
    """Distance from the median in units of the median absolute deviation, of the values or of a reference.

        z_i = (x_i - median(x)) / (MAD(x) + eps)

    arXiv 2605.22266, anomaly score. ``eps`` only keeps equal values at zero.

    >>> robust_z([1.0, 2.0, 3.0, 4.0, 100.0]).round(6).tolist()
    [-2.0, -1.0, 0.0, 1.0, 97.0]
    """
    x = np.asarray(values, dtype=np.float64)
    if x.size == 0:
        return x.copy()
    usual = x if reference is None else np.asarray(reference, dtype=np.float64)
    return np.asarray((x - np.median(usual)) / (mad(usual) + eps), dtype=np.float64)


def severity(scores: Sequence[Scores], trusted: Mask) -> Scores:
    """The largest robust z-score of each client over several scores, at least 0; medians are those of trusted clients.

        z_i = max(0, max over scores u of (u_i - median(u)) / (MAD(u) + eps))

    Where nobody is trusted, medians are those of all.

    >>> scores = [np.array([1.0, 2.0, 3.0, 9.0]), np.array([4.0, 2.0, 3.0, 9.0])]
    >>> severity(scores, trusted=np.array([True, True, True, False])).round().tolist()
    [1.0, 0.0, 1.0, 7.0]
    """
    if not scores or not len(trusted):
        return np.zeros(len(trusted))
    x = np.array(scores, dtype=np.float64)
    usual = x[:, trusted] if trusted.any() else x
    centre = np.median(usual, axis=1, keepdims=True)
    spread = np.median(np.abs(usual - centre), axis=1, keepdims=True)
    return np.asarray(np.maximum(0.0, ((x - centre) / (spread + EPS)).max(axis=0)), dtype=np.float64)


def among(some: Collection[str], client_ids: Sequence[str]) -> Mask:
    """Which of these clients are among some.

    >>> among({"b": 1}, ("a", "b")).tolist()
    [False, True]
    """
    return np.fromiter((client in some for client in client_ids), bool, len(client_ids))


def scatter(values: NDArray[V], index: Sequence[int] | NDArray[np.int_], n: int, fill: object) -> NDArray[V]:
    """An array of n entries with these values at some positions and a filling elsewhere.

    >>> scatter(np.array([1.0, 2.0]), [2, 0], 3, fill=0.0).tolist()
    [2.0, 0.0, 1.0]
    """
    out = np.full(n, fill, dtype=values.dtype)
    out[np.asarray(index, dtype=int)] = values
    return out


def spent_level(alpha: float, test: int) -> float:
    """The part of the run's level that its test number ``test`` may use; the parts add up to alpha.

        alpha_t = alpha / (t (t + 1))

    >>> spent_level(0.05, 1), round(sum(spent_level(0.05, t) for t in range(1, 100_000)), 4)
    (0.025, 0.05)
    """
    return alpha / (test * (test + 1))


def shrink(lengths: Norms, limit: float) -> Weights:
    """The factor that brings a length down to the limit: min(1, limit / length), 1 for length 0.

    >>> shrink(np.array([0.0, 1.0, 4.0]), 2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    return np.divide(limit, lengths, out=np.ones_like(lengths), where=lengths > limit)


def shortening(lengths: Norms, standing: Mask, ratio: float | None) -> Weights:
    """The factors that bring updates down to some times the median length of the clients in good standing.

        f_i = min(1, ratio * lower median over those j of ||x_j|| / ||x_i||)

    Whoever is left out of the round counts here: with tiny updates a minority could otherwise shorten all to nothing.

    >>> shortening(np.array([1.0, 2.0, 8.0]), np.ones(3, bool), ratio=2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    if ratio is None or math.isinf(ratio) or not standing.any():
        return np.ones(len(lengths))
    return shrink(lengths, ratio * float(np.quantile(lengths[standing], 0.5, method="lower")))
