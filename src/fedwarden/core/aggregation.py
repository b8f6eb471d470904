"""One call for one aggregation, without a warden."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .registry import make
from .types import Aggregate, Cohort
from .updates import Updates


def aggregate(name: str, updates: Any, num_examples: ArrayLike | None = None, **options: Any) -> Aggregate:
    """Combine updates with a registered aggregator; rows with NaN or Inf are left out and get weight 0.

    >>> aggregate("mean", np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 0.0]])).update.tolist()
    [2.0, 3.0]
    """
    rows = Updates.of(updates)
    aggregator = make("aggregator", name, **options)
    counts = np.ones(len(rows)) if num_examples is None else np.asarray(num_examples, dtype=np.float64)
    finite = np.flatnonzero(rows.survey().finite)
    if not len(finite):
        raise ValueError(f"{name} needs at least one update of finite numbers; got {len(rows)}, none of them finite")
    cohort = Cohort(1, tuple(map(str, range(len(rows)))), rows, counts).select(finite.tolist())
    _, result = aggregator.step(aggregator.init(), cohort, np.ones(len(cohort)))
    if result.weights is None:
        return Aggregate(result.update)
    weights = np.zeros(len(rows))
    weights[finite] = result.weights
    return Aggregate(result.update, weights)
