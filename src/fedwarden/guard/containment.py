"""How far one round's updates are let move the model, whatever the watches will make of their clients later."""

from __future__ import annotations

import math

import numpy as np

from ..core.stats import Mask, Norms, Scores, Weights, shrink

KNOWN = 3  # rounds after which a client is no newcomer: those that evidence takes at least
LONGEST = 16.0  # median lengths that one client in doubt has at most: the only owner of a class among 40 needs as many


def level(lengths: Norms, total: float) -> float:
    """The length to which the longest updates must be shortened for all of them to add up to no more than a total.

        sum_i min(||x_i||, l) = total;   the longest length where they add up to less

    >>> level(np.array([1.0, 4.0, 9.0]), 7.0), level(np.array([1.0, 2.0]), 7.0)
    (3.0, 2.0)
    """
    ordered = np.sort(lengths)
    if ordered.sum() <= total:
        return float(ordered[-1]) if len(ordered) else 0.0
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    levels = (total - below) / np.arange(len(ordered), 0, -1)
    return float(levels[np.argmax(levels <= ordered)])


def bounded(
    lengths: Norms, usual: Mask, doubted: Mask, kept: Mask, shorten: float | None, joint: float | None
) -> Weights:
    """The factors that bring updates down to what each may move the model by.

    Median lengths are those of the ``usual`` clients, whether in doubt or not: a minority with tiny updates that puts
    the others in doubt must not shorten all to nothing.
    A client is let move it by ``shorten`` median lengths. The clients in doubt that are in the model share
    ``joint * n`` median lengths of a round with n clients, and each of them has ``LONGEST`` at most: the only owner of
    a class has to be heard over n - 1 others.

    >>> lengths = np.array([1.0, 1.0, 1.0, 8.0, 30.0])
    >>> standing, doubted = np.array([1, 1, 1, 0, 0], bool), np.array([0, 0, 0, 1, 1], bool)
    >>> bounded(lengths, standing, doubted, np.ones(5, bool), shorten=3.0, joint=0.8).tolist()
    [1.0, 1.0, 1.0, 0.25, 0.06666666666666667]
    """
    if not usual.any():
        return np.ones(len(lengths))
    middle = float(np.quantile(lengths[usual], 0.5, method="lower"))
    factors = shrink(lengths, (math.inf if shorten is None else shorten) * middle)
    inside = doubted & kept
    if joint is None or not inside.any():
        return factors
    most = max(joint * len(lengths), shorten or 0.0)  # of few clients, one has no less than any other client
    factors[doubted] = shrink(lengths[doubted], min(level(lengths[inside], most * middle), LONGEST * middle))
    return factors


def discount(ages: Scores) -> Weights:
    """The factor by which an update is shortened that began from a model of an earlier round.

        s(a) = 1 / sqrt(1 + a),   a the rounds between that model and the one that is changed

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (FedBuff, 2022), section 5.

    >>> discount(np.array([0.0, 3.0, 99.0])).tolist()
    [1.0, 0.5, 0.1]
    """
    return np.asarray(1 / np.sqrt(1 + ages), dtype=np.float64)


def newcomers_share(rounds: Scores) -> Weights:
    """The factors by which newcomers have the weight of one client together, where most of a round is known.

    ``rounds`` counts the rounds of each client before this one. A client that comes back under a new name before any
    evidence is gathered has no more weight for it, and neither have many of them.

    >>> newcomers_share(np.array([3.0, 9.0, 4.0, 0.0, 1.0])).tolist(), newcomers_share(np.zeros(2)).tolist()
    ([1.0, 1.0, 1.0, 0.5, 0.5], [1.0, 1.0])
    """
    new = rounds < KNOWN
    many = np.count_nonzero(new)
    return np.where(new, 1.0 / many, 1.0) if 0 < 2 * many < len(rounds) else np.ones(len(rounds))
