"""Attackers that ask first: the guard alone, or guard and aggregator for what turns the aggregate back the most."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Effect, Knowledge, View

RATIO = 4.0  # between two strengths of the first search
COARSE = 4  # strengths of the first search, from the limit down
CLOSER = 0.3  # of their own noise that attackers keep who stand close together

Outcome = Callable[[Tensor], Effect]


def harm(aggregate: Tensor, mean: Tensor) -> float:
    """How far an aggregate is turned back against the honest mean: -1 where it is that mean, 0 where nothing is left.

        h = - u.mu / mu.mu

    >>> harm(torch.tensor([-2.0, 5.0]), torch.tensor([1.0, 0.0]))
    2.0
    """
    size = float(mean.double() @ mean.double())
    return -float(aggregate.double() @ mean.double()) / size if size > 0 else 0.0


def pushes(honest: Tensor, previous: Tensor | None) -> dict[str, Tensor]:
    """Directions as long as the honest mean: against it, its signs, its spread, and the last change of the model.

    -mu,   -sign(mu),   -sigma sign(mu),   -previous
    """
    mean = honest.mean(dim=0)
    found = {"mean": -mean, "sign": -mean.sign(), "deviation": -honest.std(dim=0, correction=0) * mean.sign()}
    if previous is not None:
        found["previous"] = -previous
    length: Tensor = mean.norm()
    return {name: push * (length / push.norm().clamp_min(torch.finfo(push.dtype).tiny)) for name, push in found.items()}


class Plan(NamedTuple):
    """What attackers send at a strength g: ``base + g push``."""

    base: Tensor
    push: Tensor

    def rows(self, strength: float) -> Tensor:
        return self.base + strength * self.push


def plans(view: View) -> Iterator[Plan]:
    """All pushes of what each trained; against mean and spread also from the honest mean, where they are all alike.

    Against the mean also from close to it, where they are not, and by the first attacker alone while the others send
    what they trained.
    """
    own, mean = view.own, view.honest.mean(dim=0)
    found = pushes(view.honest, view.previous)
    for name, push in found.items():
        yield Plan(own, push.expand_as(own))
        if name in ("mean", "deviation"):
            yield Plan(mean.expand_as(own), push.expand_as(own))
    yield Plan(mean + CLOSER * (own - own.mean(dim=0)), found["mean"].expand_as(own))
    if len(own) > 1:
        first = torch.zeros_like(own)
        first[0] = found["mean"]
        yield Plan(own, first)


class Tried(NamedTuple):
    """How much harm a plan does at a strength, -inf where the guard objects, and whether its rows count at all."""

    harm: float
    strength: float
    plan: Plan
    counts: bool


def coarse(tried: Callable[[float], Tried], limit: float) -> Iterator[Tried]:
    """Strengths from the limit down, a quarter of the last each time, as long as a weaker one may do more harm.

    It may while the guard objects, or while a rule such as Krum takes other rows; the weakest only while it objects.
    """
    passed: list[Tried] = []
    for j in range(COARSE):
        yield (found := tried(limit / RATIO**j))
        if found.counts and passed and found.harm < passed[-1].harm:
            return
        passed += [found] if found.harm > -math.inf else []
        if passed and j == COARSE - 2:
            return


def refined(measure: Callable[[float], float], start: float, value: float, steps: int) -> tuple[float, float]:
    """The best strength near one whose value is known, and its value: up by a factor, or else down, or neither.

    The first factor is 2, and each is the root of the last: in all it goes up or down by less than 4.

    >>> best, _ = refined(lambda g: -abs(g - 3.0), start=2.0, value=-1.0, steps=8)
    >>> round(best, 1)
    3.0
    """
    factor = 2.0
    for _ in range(steps):
        for near in (start * factor, start / factor):
            if (found := measure(near)) > value:
                start, value = near, found
                break
        factor = math.sqrt(factor)
    return start, value


@register("attack", "strongest")
@dataclass(frozen=True)
class Strongest:
    """Knows guard and aggregator: of many pushes that nobody is flagged for, the one that harms the aggregate most.

    Every push is tried at strengths from ``limit`` times the honest mean down, and the best of them is refined in
    ``steps``. An attacker that would be flagged for its own training may be flagged. It looks one round
    ahead.
    """

    limit: float = 8.0
    steps: int = 8
    knowledge: ClassVar[Knowledge] = "all"

    def __post_init__(self) -> None:
        if not self.limit > 0 or self.steps < 0:
            raise ValueError(f"limit must be positive and steps not below 0; got {self.limit} and {self.steps}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        outcome, mean = view.outcome or _mean_of(view), view.honest.mean(dim=0)
        honest = outcome(view.own)

        def tried(plan: Plan, strength: float) -> Tried:
            effect = outcome(plan.rows(strength))
            passes = bool((effect.accepted | ~honest.accepted).all())
            return Tried(harm(effect.update, mean) if passes else -math.inf, strength, plan, bool(effect.weights.any()))

        best = Tried(harm(honest.update, mean), 0.0, Plan(view.own, torch.zeros_like(view.own)), True)
        for plan in plans(view):
            best = max(best, *coarse(partial(tried, plan), self.limit), key=lambda t: t.harm)
        if not best.strength:
            return view.own.clone()

        def near(strength: float) -> float:
            return tried(best.plan, strength).harm if strength <= self.limit else -math.inf

        strength, _ = refined(near, best.strength, best.harm, self.steps)
        return best.plan.rows(strength)


def _mean_of(view: View) -> Outcome:
    """What becomes of the round where nobody tells: the guard as far as it is known, and the mean of all."""

    def outcome(rows: Tensor) -> Effect:
        together = torch.cat([rows, view.others]) if view.others is not None else rows
        accepted = np.ones(len(rows), bool) if view.accepts is None else view.accepts(rows)
        return Effect(together.mean(dim=0), np.full(len(rows), 1 / len(together)), accepted)

    return outcome


def largest(passes: Callable[[float], bool], limit: float, steps: int) -> float:
    """The largest value up to a limit that passes, to limit / 2^steps, by bisection; 0 is taken to pass.

    >>> largest(lambda x: x <= 3.0, limit=8.0, steps=3)
    3.0
    """
    if passes(limit):
        return limit
    low, high = 0.0, limit
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(middle) else (low, middle)
    return low


@register("attack", "adaptive")
@dataclass(frozen=True)
class Adaptive:
    """Asks the guard first: what each trained, pushed against the honest mean as far as none of them would be flagged.

    u_i = x_i - g mu with the largest g up to ``limit``: every attacker keeps its own noise, so that no two are alike.
    It looks no further than the round.
    """

    limit: float = 10.0
    steps: int = 10
    knowledge: ClassVar[Knowledge] = "all"

    def __post_init__(self) -> None:
        if not self.limit > 0 or self.steps < 1:
            raise ValueError(f"limit must be positive and steps at least 1; got {self.limit} and {self.steps}")

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        mean, accepts = view.honest.mean(dim=0), view.accepts

        def pushed(g: float) -> Tensor:
            return view.own - g * mean

        if accepts is None:
            return pushed(self.limit)
        return pushed(largest(lambda g: bool(accepts(pushed(g)).all()), self.limit, self.steps))
