"""Updates whose direction or signs stand out are left out, the rest clipped (AlignIns)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedwarden.aggregators.common import counted
from fedwarden.core.registry import register
from fedwarden.core.stats import Mask, Scores, Weights, shrink
from fedwarden.core.types import Aggregate, Cohort, State
from fedwarden.updates.updates import Updates

EQUAL = 1e-9  # a deviation up to which scores are equal, as in the authors' code; and how exactly a limit is met


def model_cosines(updates: Updates, params: Tensor) -> Scores:
    """The cosine of every update with the global model; 0 where one of them is zero.

        w_i = <x_i, theta> / (||x_i|| ||theta||)

    Xu et al., Detecting Backdoor Attacks in Federated Learning via Direction Alignment Inspection (CVPR 2025): temporal
    direction alignment.

    >>> model_cosines(Updates.of(np.array([[3.0, 4.0], [0.0, 0.0]])), torch.tensor([2.0, 0.0])).tolist()
    [0.6, 0.0]
    """
    if params.numel() != updates.d:
        raise ValueError(f"alignins needs params of d={updates.d} entries; got {params.numel()}")
    flat = params.reshape(-1)
    length = sum(float(flat[a:b].double().square().sum()) for a, b in updates.measured) ** 0.5
    scale = updates.lengths() * length
    cosines = np.zeros(len(updates))
    np.divide(updates.dots(flat), scale, out=cosines, where=scale > 0)
    return cosines


def sign_agreement(updates: Updates, k: int) -> Scores:
    """The share of every update's k largest entries that have the sign which most updates have there.

        p[j] = sign(sum_i sign(x_i[j]));   r_i = |{j in top k of |x_i| : sign(x_i[j]) = p[j]}| / k

    Xu et al. (2025): masked principal sign alignment. Differs from the paper: where entries of one size compete for the
    last places among the k, each counts in part.

    >>> rows = Updates.of(np.array([[3.0, 1.0, -2.0], [4.0, 1.0, -1.0], [-5.0, 0.5, -6.0]]))
    >>> sign_agreement(rows, k=2).tolist()
    [1.0, 1.0, 0.5]
    """
    majority = torch.cat([block.sign().sum(dim=0).sign() for _, _, block in updates.blocks(measured_only=True)])
    shares = []
    for i in range(len(updates)):
        row = torch.cat([block[0].clone() for _, _, block in updates.select([i]).blocks(measured_only=True)])
        agrees, size = row.sign() == majority, row.abs_()
        last = size.kthvalue(size.numel() - k + 1).values
        above, tied = size > last, size == last
        places = (k - int(above.sum())) / int(tied.sum())
        shares.append((int((agrees & above).sum()) + places * int((agrees & tied).sum())) / k)
    return np.array(shares)


def median_z(values: Scores) -> Scores:
    """How many standard deviations a value lies off the median; 0 where all are equal.

        z_i = |v_i - median(v)| / std(v)

    Xu et al. (2025): the median-based z-score.

    >>> median_z(np.array([0.0, 2.0, 2.0, 4.0])).round(4).tolist()
    [1.4142, 0.0, 0.0, 1.4142]
    """
    spread = float(values.std())
    off = np.abs(values - np.median(values))
    return np.asarray(off / spread if spread > EQUAL else np.zeros(len(values)), dtype=np.float64)


def aligned(updates: Updates, params: Tensor, share: float, angle: float, signs: float) -> Mask:
    """The updates whose direction and whose signs both lie within their limits.

        median z of w_i <= angle  and  median z of r_i <= signs

    Xu et al. (2025), algorithm 1; the limits are their lambda_c and lambda_s, ``share`` is k / d. Differs from the
    authors' code: a score exactly at its limit is within it.

    >>> rows = Updates.of(np.array([[1.0, 2.0], [1.1, 2.0], [0.9, 2.0], [-5.0, -6.0]]))
    >>> aligned(rows, torch.tensor([1.0, 1.0]), share=0.5, angle=1.0, signs=1.0).tolist()
    [True, True, True, False]
    """
    n, entries = len(updates), sum(b - a for a, b in updates.measured)
    k = int(share * entries)
    if n < 3:
        raise ValueError(f"alignins needs n >= 3 clients; got n={n}")
    if not 1 <= k <= entries:
        raise ValueError(f"alignins needs 1 <= share * d <= d entries; got share={share}, d={entries}, n={n}")
    limits = ((model_cosines(updates, params), angle), (sign_agreement(updates, k), signs))
    return np.asarray(np.all([median_z(scores) <= limit + EQUAL for scores, limit in limits], axis=0))


def alignins(updates: Updates, shares: Weights, kept: Mask) -> Aggregate:
    """The mean of the kept updates, each shortened to their median length; zero where none is kept.

        u = sum_{i in S} p_i x_i min(1, c / ||x_i||),   c = median_{i in S} ||x_i||,   sum_{i in S} p_i = 1

    Xu et al. (2025), algorithm 1: clipping after the filter. The median of an even number is the mean of the two in the
    middle.

    >>> rows = Updates.of(np.array([[1.0], [2.0], [6.0], [90.0]]))
    >>> alignins(rows, np.ones(4), np.array([True, True, True, False])).update.round(decimals=4).tolist()
    [1.6667]
    """
    if not kept.any():
        return Aggregate(updates.weighted_sum(np.zeros(len(updates))))
    lengths, counted = updates.lengths(), np.where(kept, shares, 0.0)
    return Aggregate(updates.weighted_sum(counted / counted.sum() * shrink(lengths, float(np.median(lengths[kept])))))


@register(
    "aggregator",
    "alignins",
    exempt={
        "translation": "angles and signs are taken from zero",
        "near-agreement": "angles and signs are taken from zero",
        "defaults": "where two are kept, half of the length of a far one is what both are cut to",
    },
)
@dataclass(frozen=True)
class AlignIns:
    """The clipped mean without the updates whose direction or signs stand out; made against backdoors.

    ``angle`` limits how far the cosine with the global model, ``signs`` how far the agreement of the largest entries
    (the ``share`` of them) with the majority's signs may lie off the median, in standard deviations.
    """

    share: float = 0.3
    angle: float = 1.0
    signs: float = 1.0
    weighted: bool = False

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        if cohort.params is None:
            raise ValueError("alignins needs the cohort's params, the model that the updates start from")
        _, kept, shares = counted(cohort, weights, self.weighted)
        return state, alignins(kept, shares, aligned(kept, cohort.params, self.share, self.angle, self.signs))
