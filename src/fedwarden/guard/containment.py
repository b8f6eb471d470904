"""Bounds on how far one round's updates move the model, whatever evidence there is about their clients."""

from __future__ import annotations

import math

import numpy as np

from ..core.stats import Mask, Norms, Scores, Weights, shrink

KNOWN = 3  # rounds after which a client is no newcomer: evidence needs at least as many
CARRIED = 1.5  # carried median lengths that an update has at most where clients are seldom seen, and so any round
LONGEST = 16.0  # median lengths that one client in doubt has at most: the only owner of a class among 40 needs as many


def level(lengths: Norms, total: float) -> float:
    """The length to shorten the longest updates to, so that all lengths add up to at most ``total``.

        sum_i min(||x_i||, l) = total;   the longest length if they add up to less

    >>> level(np.array([1.0, 4.0, 9.0]), 7.0), level(np.array([1.0, 2.0]), 7.0)
    (3.0, 2.0)
    """
    ordered = np.sort(lengths)
    if ordered.sum() <= total:
        return float(ordered[-1]) if len(ordered) else 0.0
    levels = (total - np.cumsum(ordered) + ordered) / np.arange(len(ordered), 0, -1)
    return float(levels[np.argmax(levels <= ordered)])


def bounded(
    lengths: Norms, usual: Mask, doubted: Mask, kept: Mask, shorten: float | None, joint: float | None
) -> Weights:
    """The factors that shorten updates, to bound how far each client moves the model.

    The median length is that of the ``usual`` clients, in doubt or not: a minority with tiny updates that puts the
    others in doubt must not shorten all updates to nothing. Each client may move the model by ``shorten`` median
    lengths. In a round with n clients, those in doubt and in the model share ``joint * n`` median lengths, and each has
    at most ``LONGEST``: the only owner of a class needs a long update against n - 1 others.

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
    most = max(joint * len(lengths), shorten or 0.0)  # in a small round, at least as much as any one client
    factors[doubted] = shrink(lengths[doubted], min(level(lengths[inside], most * middle), LONGEST * middle))
    return factors


def discount(ages: Scores) -> Weights:
    """The factor that shortens an update that started from an earlier model.

        s(a) = 1 / sqrt(1 + a),   a the rounds between that model and the current one

    Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation (FedBuff, 2022), section 5.

    >>> discount(np.array([0.0, 3.0, 99.0])).tolist()
    [1.0, 0.5, 0.1]
    """
    return np.asarray(1 / np.sqrt(1 + ages), dtype=np.float64)


def newcomers_share(rounds: Scores, usual: float = 0.0) -> Weights:
    """The factors that limit the joint weight of a round's newcomers.

        sum over newcomers of f_i <= max(1, n s + 2 sqrt(n s (1 - s)))

    ``rounds`` counts each client's earlier rounds, and s is the ``usual`` share of newcomers. So a client gains no
    weight by returning under a new name before there is evidence, nor do many such clients.

    >>> newcomers_share(np.array([3.0, 9.0, 4.0, 0.0, 1.0])).tolist(), newcomers_share(np.zeros(2), 1.0).tolist()
    ([1.0, 1.0, 1.0, 0.5, 0.5], [1.0, 1.0])
    """
    new, n = rounds < KNOWN, len(rounds)
    many = int(np.count_nonzero(new))
    allowed = max(1.0, n * usual + 2 * math.sqrt(n * usual * (1 - usual)))
    return np.where(new, min(1.0, allowed / max(many, 1)), 1.0)
