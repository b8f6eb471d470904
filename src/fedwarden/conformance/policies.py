"""The laws of a policy: who is excluded and a decision in, who is excluded now and weights out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy

import numpy as np

from ..core.protocols import Findings, Policy
from ..core.stats import Scores
from .component import Component
from .law import laws, require


def subject(component: Component) -> Policy:
    """The policy."""
    policy: Policy = component.make()
    return policy


def runs() -> Iterator[list[Findings]]:
    """Runs of up to six rounds in which clients come, go and are flagged."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        run = []
        for _ in range(seed % 7):
            ids = tuple(c for c in rng.permutation(list("abcdef")).tolist() if rng.random() < 0.7)
            severity = rng.choice([0.0, 0.5, 3.0, 40.0, 1e15], size=len(ids))
            run.append(Findings(ids, rng.random(len(ids)) < 0.3, severity, rng.random(len(ids)) < 0.1))
        yield run


def play(policy: Policy, run: Iterable[Findings]) -> tuple[Mapping[str, int], list[Scores]]:
    """The last state, and the weights of each round."""
    state, out = policy.init(), []
    for decision in run:
        state, weights = policy.step(state, decision)
        out.append(np.asarray(weights))
    return state, out


def weights_in_range(policy: Policy) -> None:
    """Every client has one weight between 0 and 1."""
    for run in runs():
        for decision, weights in zip(run, play(policy, run)[1], strict=True):
            n = len(decision.client_ids)
            require(weights.shape == (n,), f"expected {n} weights; got the shape {weights.shape}")
            inside = ((weights >= 0) & (weights <= 1)).all()
            require(inside, f"expected weights in [0, 1]; got {weights.tolist()!s:.60}")


def permutation(policy: Policy) -> None:
    """Clients are known by id, and their order does not matter."""
    for run in runs():
        turned = [Findings(d.client_ids[::-1], d.flagged[::-1], d.severity[::-1], d.doubted[::-1]) for d in run]
        (state_a, a), (state_b, b) = play(policy, run), play(policy, turned)
        for x, y in zip(a, b, strict=True):
            got, want = y[::-1].tolist(), x.tolist()
            require(got == want, f"clients in reverse order: expected the weights {want!s:.60}; got {got!s:.60}")
        require(dict(state_a) == dict(state_b), f"expected the state {state_a!s:.60}; got {state_b!s:.60}")


def state_untouched(policy: Policy) -> None:
    """A step does not change the state that it was given."""
    for run in runs():
        state = policy.init()
        for decision in run:
            before = deepcopy(state)
            after, _ = policy.step(state, decision)
            require(state == before, f"expected the state {before!s:.60}; got {state!s:.60}")
            state = after


def survives_json(policy: Policy) -> None:
    """A state that went through JSON continues the same."""
    for run in runs():
        state = policy.init()
        for decision in run:
            after, want = policy.step(state, decision)
            again, got = policy.step(json.loads(json.dumps(dict(state))), decision)
            require(np.array_equal(got, want), f"expected the weights {want!s:.60}; got {got!s:.60}")
            require(dict(again) == dict(after), f"expected the state {after!s:.60}; got {again!s:.60}")
            state = after


def never_suspicious(policy: Policy) -> None:
    """Who was never suspicious keeps full weight and is asked."""
    for run in runs():
        clean = [
            Findings(
                (*d.client_ids, "good"),
                np.append(d.flagged, False),
                np.append(d.severity, 0.0),
                np.append(d.doubted, False),
            )
            for d in run
        ]
        state, out = play(policy, clean)
        weights = [float(w[-1]) for w in out]
        require(all(w == 1 for w in weights), f"expected weight 1 in every round; got {weights!s:.60}")
        for client in ("good", "never seen"):
            got = policy.asks(client, state)
            require(got is True, f"expected that the client {client!r} is asked; got {got!r}")


def asks_yes_or_no(policy: Policy) -> None:
    """Whether a client is asked is True or False."""
    for run in runs():
        state, _ = play(policy, run)
        for got in (policy.asks(c, state) for c in "abcdef"):
            require(got in (True, False), f"expected True or False; got {got!r}")


LAWS = laws(weights_in_range, permutation, state_untouched, survives_json, never_suspicious, asks_yes_or_no)
