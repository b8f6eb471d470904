"""What aggregators share, and one call for one aggregation without a warden."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..core.protocols import CompleteAggregator
from ..core.registry import Spec, component, describe
from ..core.stats import Weights, scatter
from ..core.types import Aggregate, Cohort
from ..updates.survey import LARGEST
from ..updates.updates import Updates


def among(updates: Updates, weights: Weights, rule: Callable[[Updates], Aggregate]) -> Aggregate:
    """What a rule that counts every client once makes of the clients whose weight is not zero.

    >>> rows = Updates.of(np.array([[1.0], [2.0], [9.0]]))
    >>> among(rows, np.array([1.0, 0.5, 0.0]), lambda kept: Aggregate(kept.ranked_mean(0, 2))).update.tolist()
    [1.5]
    """
    keep = np.flatnonzero(weights > 0)
    return widen(rule(updates.select(keep)), keep, len(updates))


def tolerated(cohort: Cohort, given: int | None, most: int, usual: int | None = None) -> int:
    """The number of attackers that a rule is to withstand where its clients allow ``most``.

        f' = f   where f <= most;   f' = max(most, f - r)   elsewhere, r the rejected replies

    A client whose reply was rejected is one of the f, so that it cannot stop a rule at its smallest n. It lowers f only
    where it must: a fault is no proof of an attack, and honest clients with one would disarm the rule for the others.
    Without a number ``given`` it is the ``usual`` one, by default the most.

    >>> one_gone = Cohort(1, "abcdef", Updates.of(np.zeros((6, 1))), np.ones(6), rejected=1)
    >>> tolerated(one_gone, 2, most=1), tolerated(one_gone, 2, most=5), tolerated(one_gone, 4, most=1)
    (1, 2, 3)
    """
    if given is None:
        return max(most, 0) if usual is None else usual
    return min(given, max(most, given - cohort.rejected, 0))


def counted(cohort: Cohort, weights: Weights, weighted: bool) -> tuple[NDArray[np.int64], Updates, Weights]:
    """The clients of weight above 0, their updates, and their weights, times their example counts where asked."""
    keep = np.flatnonzero(weights > 0)
    return keep, cohort.updates.select(keep), (weights * (cohort.num_examples if weighted else 1.0))[keep]


def widen(result: Aggregate, keep: Any, n: int) -> Aggregate:
    """The result over some of n clients with weights over all of them: 0 for those left out."""
    if result.weights is None:
        return result
    return Aggregate(result.update, scatter(result.weights, keep, n, 0.0))


def some_columns(updates: Updates, size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """So many of the measured columns, drawn without replacement, in ascending order; all where there are no more.

    >>> rows = Updates.of(np.zeros((2, 9)), measured=[(0, 2), (7, 9)])
    >>> some_columns(rows, 5, np.random.default_rng(0)).tolist()
    [0, 1, 7, 8]
    """
    starts, stops = np.array(updates.measured).T
    before = np.cumsum(stops - starts) - (stops - starts)
    total = int((stops - starts).sum())
    picks = np.sort(rng.choice(total, min(size, total), replace=False))
    part = np.searchsorted(before, picks, side="right") - 1
    return np.asarray(picks - before[part] + starts[part], dtype=np.int64)


def inner(then: Any) -> CompleteAggregator:
    """The rule inside a wrapper: by name, by a table of its name and options, or as it is."""
    rule: CompleteAggregator = component("aggregator", then)
    return rule


def aggregate(name: Spec, updates: Any, num_examples: ArrayLike | None = None, **options: Any) -> Aggregate:
    """Combine updates with a registered aggregator; rows with NaN or Inf are left out and get weight 0.

    So are rows too long to be summed, with a warning. A row that is left out counts against the ``f`` or ``b`` of a
    rule that is left with too few others.

    >>> aggregate("mean", np.array([[1.0, 2.0], [3.0, 4.0], [np.nan, 0.0]])).update.tolist()
    [2.0, 3.0]
    """
    if not isinstance(name, str | Mapping):
        raise TypeError("the name of an aggregator comes first, or a table with it, then the updates")
    table = {"name": name} if isinstance(name, str) else name
    return combine(component("aggregator", {**table, **options}), updates, num_examples)


def combine(
    aggregator: CompleteAggregator, updates: Any, num_examples: ArrayLike | None = None, params: Tensor | None = None
) -> Aggregate:
    """The same with an aggregator that is there already; ``params`` is the model that the updates start from."""
    rows = Updates.of(updates)
    counts = np.ones(len(rows)) if num_examples is None else np.asarray(num_examples, dtype=np.float64)
    survey = rows.survey(spread=False, products=aggregator.pairs)
    cohort = Cohort(1, tuple(map(str, range(len(rows)))), rows.knowing(survey), counts, params)
    finite = np.flatnonzero(survey.finite) if not survey.all_finite else None
    if finite is not None and not len(finite):
        name = describe(aggregator)["name"]
        raise ValueError(f"{name} needs at least one update of finite numbers; got {len(rows)}, none of them finite")
    kept = cohort if finite is None else replace(cohort.select(finite.tolist()), rejected=len(rows) - len(finite))
    for i in np.flatnonzero(~survey.finite).tolist():
        if all(bool(part.isfinite().all()) for part in rows.sent(i)):
            told = f"row {i} of {len(rows)} is left out: its norm is more than {LARGEST:g}; scale the updates to less"
            warnings.warn(told, stacklevel=3)
    result = aggregator.step(aggregator.init(), kept, np.ones(len(kept)))[1]
    return result if finite is None else widen(result, finite, len(rows))
