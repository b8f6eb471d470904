"""The laws of an aggregator: those of an aggregation rule on plain rows, and those of its state and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any

import numpy as np
import torch

from ..core.registry import lookup, parameters
from ..core.stats import Weights
from ..core.types import Aggregate, Cohort
from ..guard.warden import Warden
from ..updates.updates import Updates
from . import laws as on_rows
from .component import Component, equipped, of_size
from .law import Array, CannotTell, Law, laws, require, same
from .subject import Subject, registered

N, D = 13, 40


@dataclass(frozen=True)
class Examined:
    """An aggregator, and the same as a function of rows."""

    aggregator: Any
    function: Subject


def subject(component: Component) -> Examined:
    """The aggregator with a server, at its default options; as a function at those that the laws use."""
    made = equipped("aggregator", component.make(), of_size(D))
    function = Subject(registered(component.name), name=component.name, options=component.options, registered=True)
    return Examined(made, function)


def of_function(law: Law) -> Law:
    """A law of a function of rows as a law of the aggregator."""

    @wraps(law.check)
    def check(it: Examined) -> None:
        law.check(it.function)

    return Law(check)


def draw(t: int = 1) -> Array:
    """The updates of round t."""
    return np.random.default_rng(t).normal(1.0, 1.0, size=(N, D))


COUNTS = np.random.default_rng(9).integers(5, 50, size=N).astype(np.float64)


def play(it: Examined, rounds: Sequence[Array], clients: Sequence[int], weights: Weights) -> Aggregate:
    """The last result of several rounds, so that an aggregator with a memory uses it."""
    state, ids, counts = it.aggregator.init(), tuple(f"client {i}" for i in clients), COUNTS[list(clients)]
    for t, rows in enumerate(rounds, 1):
        cohort = Cohort(t, ids, Updates.of(rows), counts, torch.zeros(D))
        state, result = it.aggregator.step(state, cohort, weights)
    final: Aggregate = result
    return final


def finite_update(it: Examined) -> None:
    """An update has one finite number per parameter."""
    update = play(it, [draw()], range(N), np.ones(N)).update
    require(update.shape == (D,), f"expected {D} numbers; got the shape {tuple(update.shape)}")
    bad = int((~update.isfinite()).sum())
    require(not bad, f"expected finite numbers; got {bad} that are not")


def permutation_of_rounds(it: Examined) -> None:
    """Over several rounds clients are known by id, and their order does not matter."""
    order, weights = np.random.default_rng(0).permutation(N), np.linspace(0.2, 1.0, N)
    rows = [draw(t) for t in (1, 2, 3)]
    a = play(it, rows, range(N), weights)
    b = play(it, [x[order] for x in rows], order.tolist(), weights[order])
    _alike(b, a, order.tolist(), "three rounds in another order")


def zero_weight(it: Examined) -> None:
    """A client of weight 0 does not count."""
    rows = [draw(t) for t in (1, 2)]
    for x in rows:
        x[4] *= -1e6
    rest = [i for i in range(N) if i != 4]
    weights = (np.arange(N) != 4).astype(np.float64)
    a = play(it, rows, range(N), weights)
    b = play(it, [x[rest] for x in rows], rest, weights[rest])
    if a.weights is not None:
        require(a.weights[4] == 0, f"expected the weight 0 for it; got {a.weights[4]:.6g}")
    _alike(b, a, rest, "the cohort without it")


def _alike(got: Aggregate, want: Aggregate, clients: list[int], where: str) -> None:
    same(got.update.double().numpy(), want.update.double().numpy(), 1e-9, where)
    require((got.weights is None) == (want.weights is None), f"{where}: expected weights in both or in none")
    if got.weights is not None and want.weights is not None:
        same(got.weights, want.weights[clients], 1e-9, f"{where}, weights")


def weights_make_the_update(it: Examined) -> None:
    """Weights, where they are given, are shares of the clients and make the update."""
    for policy in (np.ones(N), np.linspace(0.0, 1.0, N)):
        result = play(it, [draw(1), draw(2)], range(N), policy)
        if result.weights is None:
            raise CannotTell("it gives no weights: its update is not a weighted mean")
        total = float(result.weights.sum())
        right = result.weights.shape == (N,) and (result.weights >= 0).all() and abs(total - 1) < 1e-9
        require(right, f"expected {N} shares that sum to 1; got {len(result.weights)} that sum to {total:.6g}")
        same(result.update.double().numpy(), result.weights @ draw(2), 1e-8, "the update from the weights")


def rows_untouched(it: Examined) -> None:
    """The updates are only read, and so is the sum that a survey holds, also where it is what is asked for."""
    rows = draw()
    play(it, [rows], range(N), np.linspace(0.0, 1.0, N))
    changed = int((rows != draw()).any(axis=1).sum())
    require(not changed, f"expected the updates as they were; got {changed} of {N} changed")
    for counts in (COUNTS, np.ones(N)):
        updates = Updates.of(rows)
        survey = updates.survey(shares=counts / counts.sum())
        before = survey.total.clone()
        cohort = Cohort(1, tuple(map(str, range(N))), updates.knowing(survey), counts, torch.zeros(D))
        it.aggregator.step(it.aggregator.init(), cohort, np.ones(N))
        require(torch.equal(survey.total, before), "expected the sum of the survey as it was; got it written to")


def repeatable(it: Examined) -> None:
    """The same rounds give the same bits."""
    a, b = (play(it, [draw(1), draw(2)], range(N), np.ones(N)).update for _ in range(2))
    require(torch.equal(a, b), "expected the same update again; got another")


def any_size(it: Examined) -> None:
    """In a warden, too few clients are a note and a model that is kept, never an exception."""
    for n in range(1, 6):
        ids = tuple(f"client {i}" for i in range(n))
        cohort = Cohort(1, ids, Updates.of(draw()[:n]), np.full(n, 10.0), torch.zeros(D))
        outcome = Warden(aggregator=it.aggregator).step(cohort)
        bad = int((~outcome.update.isfinite()).sum())
        require(not bad, f"n={n}: expected a finite update; got {bad} numbers that are not")
        told = outcome.weights.sum() > 0 or outcome.record.notes
        require(told, f"n={n}: expected weights, or a note that says why there are none; got neither")


def rejected_replies(it: Examined) -> None:
    """A reply that is rejected stops no rule at its smallest n, and lowers f or b nowhere else."""
    option = next((o for o in ("f", "b") if o in parameters(lookup("aggregator", it.function.name))), None)
    if option is None:
        raise CannotTell("it has no option f or b")

    def works(n: int, rejected: int = 0, most: int = 2) -> Array | None:
        aggregator = replace(it.aggregator, **{option: most})
        ids = tuple(f"client {i}" for i in range(n))
        cohort = Cohort(1, ids, Updates.of(draw()[:n]), np.full(n, 10.0), torch.zeros(D), rejected=rejected)
        try:
            return np.asarray(aggregator.step(aggregator.init(), cohort, np.ones(n))[1].update.double().numpy())
        except ValueError:
            return None

    least = next((n for n in range(1, N) if works(n) is not None), N)
    update, kept = works(N), works(N, rejected=2)
    if update is None or kept is None or works(least - 1, most=1) is None:
        raise CannotTell(f"{N} clients are too few for {option}=2, or {least - 1} for {option}=1")
    require(
        works(least - 1, rejected=1) is not None, f"n={least - 1}, one reply rejected: expected {option}=1; got none"
    )
    same(kept, update, 0.0, f"n={N} and rejected replies, which leave {option}=2 possible")


LAWS = (
    *map(of_function, on_rows.LAWS),
    *laws(finite_update, permutation_of_rounds, zero_weight, weights_make_the_update, rows_untouched, repeatable),
    *laws(any_size, rejected_replies),
)
