"""The laws of a preset: a warden that is ready."""

from __future__ import annotations

import json

import numpy as np
import torch

from ..core.types import Cohort, Outcome
from ..guard.warden import Warden
from ..updates.updates import Updates
from .component import Component
from .law import laws, require

N, D = 8, 30


def subject(component: Component) -> Component:
    """The preset itself: every warden that it makes is another one."""
    component.make()
    return component


def play(warden: Warden, rounds: int = 3, first: int = 1, turned: int = 0) -> list[Outcome]:
    """Some rounds of clients that are alike, but for those that send the opposite."""
    ids, counts = tuple(f"client {i}" for i in range(N)), np.full(N, 10.0)
    sign = np.where(np.arange(N) < turned, -1.0, 1.0)[:, None]
    return [
        warden.step(Cohort(t, ids, Updates.of(sign * rows), counts, torch.zeros(D, dtype=torch.float64)))
        for t in range(first, first + rounds)
        for rows in [np.random.default_rng(t).normal(1.0, 1.0, size=(N, D))]
    ]


def is_a_warden(preset: Component) -> None:
    """It makes a warden."""
    made = preset.make()
    require(isinstance(made, Warden), f"expected a Warden; got {type(made).__name__}")


def finite_update(preset: Component) -> None:
    """A round of clients that are alike gives a finite update and weights between 0 and 1."""
    for outcome in play(preset.make()):
        bad = int((~outcome.update.isfinite()).sum())
        require(not bad, f"expected a finite update; got {bad} numbers that are not")
        inside = ((outcome.weights >= 0) & (outcome.weights <= 1)).all()
        require(inside, f"expected weights in [0, 1]; got {outcome.weights!s:.60}")


def nothing_shared(preset: Component) -> None:
    """Two wardens of it share nothing but a secret: what one has seen does not change the other."""
    first, second = preset.make(), preset.make()
    require(first is not second, "expected another warden each time; got the same one")
    first, second = first.but(secret=1), second.but(secret=1)
    for a, b in zip(play(first), play(second), strict=True):
        require(torch.equal(a.update, b.update), "expected the update of a fresh warden; got another")
        for x, y in zip(a.record.watches, b.record.watches, strict=True):
            alike = np.array_equal(x.scores, y.scores, equal_nan=True)
            require(alike, f"watch {x.name!r}: expected the scores of a fresh warden; got others")


def survives_json(preset: Component) -> None:
    """A warden that takes over the state of another, through JSON, goes on bit for bit; its secret comes along."""
    whole, half, rest = preset.make(), preset.make(), preset.make()
    half.load_state_dict({**half.state_dict(), "secret": whole.guard.secret})
    want = play(whole, 12, turned=2)[6:]
    play(half, 6, turned=2)
    rest.load_state_dict(json.loads(json.dumps(half.state_dict())))
    for t, (a, b) in enumerate(zip(want, play(rest, 6, first=7, turned=2), strict=True), 7):
        require(torch.equal(a.update, b.update), f"round {t}: expected the same update; got another")
        got = b.weights.tolist()
        require(got == a.weights.tolist(), f"round {t}: expected the weights {a.weights!s:.60}; got {got!s:.60}")


LAWS = laws(is_a_warden, finite_update, nothing_shared, survives_json)
