"""How well a score tells two groups apart, in NumPy alone: libraries that know it take seconds to import."""

from __future__ import annotations

import numpy as np

from .stats import Scores


def ranks(values: Scores) -> Scores:
    """The ranks of the values of each row from 1 on; equal ones have the mean of theirs.

    >>> ranks(np.array([[3.0, 1.0, 3.0, 2.0], [5.0, 5.0, 5.0, 0.0]])).tolist()
    [[3.5, 1.0, 3.5, 2.0], [3.0, 3.0, 3.0, 1.0]]
    """
    order = np.argsort(values, axis=-1, kind="stable")
    rising = np.take_along_axis(values, order, axis=-1)
    place, steps = np.arange(1, values.shape[-1] + 1), rising[..., 1:] != rising[..., :-1]
    edge = np.ones((*values.shape[:-1], 1), bool)
    first = np.maximum.accumulate(np.where(np.concatenate([edge, steps], axis=-1), place, 0), axis=-1)
    ends = np.where(np.concatenate([steps, edge], axis=-1), place, values.shape[-1])
    last = np.minimum.accumulate(ends[..., ::-1], axis=-1)[..., ::-1]
    out = np.empty(values.shape)
    np.put_along_axis(out, order, (first + last) / 2, axis=-1)
    return out


def aurocs(high: Scores, null: Scores) -> Scores:
    """The probability that one of the first scores lies above one of the null, ties counting half; of each row.

        A = (sum of the ranks of the first - s (s + 1) / 2) / (s m)

    Mann and Whitney (1947); 0.5 = cannot tell, 1 = always.

    >>> aurocs(np.array([[2.0, 3.0], [0.0, 0.0]]), np.array([[1.0, 2.0], [1.0, 2.0]])).tolist()
    [0.875, 0.0]
    """
    s, m = high.shape[-1], null.shape[-1]
    total = ranks(np.concatenate([high, null], axis=-1))[..., :s].sum(axis=-1)
    return np.asarray((total - s * (s + 1) / 2) / (s * m), dtype=np.float64)


def auroc(high: Scores, null: Scores) -> float:
    """The same of one set of scores.

    >>> auroc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    return float(aurocs(high, null))


def threshold(null: Scores, rate: float = 0.05) -> float:
    """The smallest score of the null that at most a share ``rate`` of the null exceeds.

    >>> threshold(np.arange(1.0, 21.0), 0.05), threshold(np.arange(1.0, 11.0), 0.05)
    (19.0, 10.0)
    """
    if not 0 <= rate < 1:
        raise ValueError(f"a rate of false alarms lies in [0, 1); got {rate}")
    return float(np.sort(null)[len(null) - 1 - int(rate * len(null) + 1e-9)])


def tpr_at(shifted: Scores, null: Scores, rate: float = 0.05) -> float:
    """The share of shifted runs above the threshold that at most ``rate`` of the null exceeds.

    >>> tpr_at(np.array([19.5, 18.0]), np.arange(1.0, 21.0))
    0.5
    """
    return float((shifted > threshold(null, rate)).mean())
