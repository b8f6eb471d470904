"""Updates that the past rounds of all clients did not foresee are left out (FLANDERS)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.registry import register
from ..core.seeds import numpy_rng
from ..core.stats import Mask, Scores, Weights, robust_z
from ..core.types import Aggregate, Cohort, State
from .common import some_columns, widen

Matrix = NDArray[np.float64]


def autoregression(past: Sequence[Matrix], ridge: float, steps: int) -> tuple[Matrix, Matrix]:
    """The matrices A (k, k) and B (m, m) with which each matrix (k, m) of a series best foretells the next.

        min sum_t ||X_t - A X_{t-1} B||_F^2 + penalty,   by turns: A given B, B given A, from A = B = identity

    Gabrielli et al., Protecting Federated Learning from Extreme Model Poisoning Attacks via Multidimensional Time
    Series Anomaly Detection, arXiv 2303.16668, section 4. The penalty pulls both towards the identity, in units of the
    mean diagonal of what is inverted: a short series then foretells that nothing changes.

    >>> x = np.array([[1.0, 2.0], [3.0, 5.0]])
    >>> a, b = autoregression([x, 2 * x, 4 * x], ridge=1e-9, steps=20)
    >>> (a @ (4 * x) @ b).round(4).tolist()
    [[8.0, 16.0], [24.0, 40.0]]
    """
    a, b = np.eye(len(past[0])), np.eye(past[0].shape[1])
    pairs = list(pairwise(past))
    for _ in range(steps):
        mixed = [x @ b for x, _ in pairs]
        a = _solve(sum(m @ m.T for m in mixed), sum(m @ y.T for m, (_, y) in zip(mixed, pairs, strict=True)), ridge).T
        moved = [a @ x for x, _ in pairs]
        b = _solve(sum(m.T @ m for m in moved), sum(m.T @ y for m, (_, y) in zip(moved, pairs, strict=True)), ridge)
    return a, b


def _solve(square: Any, right: Any, ridge: float) -> Matrix:
    """Least squares with a penalty on the distance to the identity."""
    eye = np.eye(len(square))
    penalty = ridge * max(float(np.trace(square)) / len(square), np.finfo(np.float64).tiny)
    return np.asarray(np.linalg.solve(square + penalty * eye, right + penalty * eye), dtype=np.float64)


def foretell(past: Sequence[Matrix], ridge: float, steps: int) -> Matrix:
    """What the past says of the next matrix: A X_{t-1} B.

    >>> x = np.array([[1.0, 2.0], [3.0, 5.0]])
    >>> foretell([x, x, x], ridge=1.0, steps=5).round(6).tolist()
    [[1.0, 2.0], [3.0, 5.0]]
    """
    a, b = autoregression(past, ridge, steps)
    return np.asarray(a @ past[-1] @ b, dtype=np.float64)


def unforeseen(foretold: Matrix, present: Matrix, limit: float) -> Mask:
    """Columns whose surprise lies more than ``limit`` robust deviations above the median one; never half of them.

        s_i = ||X_t[:, i] - foretold[:, i]||^2,   judged by its logarithm

    arXiv 2303.16668, the anomaly score with the squared Euclidean distance. Differs from the paper, which keeps as many
    of the smallest scores as it is told: the number of attackers is not known.

    >>> unforeseen(np.zeros((1, 5)), np.array([[1.0, 1.1, 0.9, 1.2, 9.0]]), 3.0).tolist()
    [False, False, False, False, True]
    """
    logs = np.log(np.maximum(np.square(present - foretold).sum(axis=0), np.finfo(np.float64).tiny))
    return np.asarray(robust_z(logs, eps=0.1) > limit * 1.4826)


@register("aggregator", "flanders", exempt={"defaults": "in the first round it has no past to judge by"})
@dataclass(frozen=True)
class Flanders:
    """The mean without the clients that an autoregression over past rounds did not foresee.

    Works on ``sample`` random parameters and the last ``window`` rounds of each client, from their third round on. What
    a client that was left out sent is remembered as it was foretold.
    """

    carries: ClassVar[bool] = True

    window: int = 5
    sample: int = 200
    limit: float = 3.0
    ridge: float = 0.1
    steps: int = 10
    weighted: bool = True
    seed: int = 0

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]:
        keep = np.flatnonzero(weights > 0)
        kept = cohort.select(keep.tolist())
        present = self._models(kept)
        known = [i for i, c in enumerate(kept.client_ids) if c in state and len(state[c]) >= 2]
        out = np.zeros(len(kept), bool)
        remembered = present.copy()
        if len(known) >= 3:
            depth = min(len(state[kept.client_ids[i]]) for i in known)
            series = np.stack([state[kept.client_ids[i]][-depth:].numpy() for i in known], axis=2)
            foretold = foretell(list(series), self.ridge, self.steps)
            out[known] = unforeseen(foretold, present[:, known], self.limit)
            remembered[:, known] = np.where(out[known], foretold, present[:, known])
        counts = np.where(out, 0.0, (weights * (cohort.num_examples if self.weighted else 1.0))[keep])
        shares = counts / counts.sum()
        after = {c: self._append(state.get(c), remembered[:, i]) for i, c in enumerate(kept.client_ids)}
        result = Aggregate(kept.updates.weighted_sum(shares), shares)
        return {**state, **after}, widen(result, keep, len(cohort))

    def _models(self, cohort: Cohort) -> Matrix:
        """The sampled parameters of every client's model, (k, n)."""
        columns = some_columns(cohort.updates, self.sample, numpy_rng(self.seed, "flanders"))
        rows = cohort.updates.sample(columns).double()
        if cohort.params is not None:
            rows = rows + cohort.params[torch.from_numpy(columns).to(rows.device)]
        return np.asarray(rows.T.cpu().numpy(), dtype=np.float64)

    def _append(self, past: torch.Tensor | None, column: Scores) -> torch.Tensor:
        row = torch.from_numpy(column.copy())[None]
        return row if past is None else torch.cat([past, row])[-self.window :]
