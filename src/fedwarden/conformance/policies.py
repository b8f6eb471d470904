"""The laws of a policy: the excluded clients and what was found in; the excluded clients now and weights out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import replace

import numpy as np

from ..core.protocols import CompletePolicy, Findings
from ..core.stats import Scores
from .component import Component
from .law import laws, require

subject = Component.make


def runs() -> Iterator[list[Findings]]:
    """Runs of up to six rounds in which clients come and go, are flagged and in doubt."""
    for seed in range(40):
        rng = np.random.default_rng(seed)
        run = []
        for t in range(1, seed % 7 + 1):
            ids = tuple(c for c in rng.permutation(list("abcdef")).tolist() if rng.random() < 0.7)
            severity = rng.choice([0.0, 0.5, 3.0, 40.0, 1e15], size=len(ids))
            flagged, doubted = rng.random(len(ids)) < 0.3, rng.random(len(ids)) < 0.3
            run.append(Findings(ids, flagged, severity, doubted & ~flagged, t, secret=seed))
        yield run


def play(policy: CompletePolicy, run: Iterable[Findings]) -> tuple[Mapping[str, int], list[Scores]]:
    """The last state, and the weights of each round."""
    state, out = policy.init(), []
    for decision in run:
        state, weights = policy.step(state, decision)
        out.append(np.asarray(weights))
    return state, out


def weights_in_range(policy: CompletePolicy) -> None:
    """Every client has one weight between 0 and 1."""
    for run in runs():
        for decision, weights in zip(run, play(policy, run)[1], strict=True):
            n = len(decision.client_ids)
            require(weights.shape == (n,), f"expected {n} weights; got the shape {weights.shape}")
            inside = ((weights >= 0) & (weights <= 1)).all()
            require(inside, f"expected weights in [0, 1]; got {weights.tolist()!s:.60}")


def permutation(policy: CompletePolicy) -> None:
    """Clients are known by id, and their order does not matter."""
    for run in runs():
        by_client = ("client_ids", "flagged", "severity", "doubted")
        turned = [replace(d, **{name: getattr(d, name)[::-1] for name in by_client}) for d in run]
        (state_a, a), (state_b, b) = play(policy, run), play(policy, turned)
        for x, y in zip(a, b, strict=True):
            got, want = y[::-1].tolist(), x.tolist()
            require(got == want, f"clients in reverse order: expected the weights {want!s:.60}; got {got!s:.60}")
        require(dict(state_a) == dict(state_b), f"expected the state {state_a!s:.60}; got {state_b!s:.60}")


def state_untouched(policy: CompletePolicy) -> None:
    """A step does not change the state that it was given."""
    for run in runs():
        state = policy.init()
        for decision in run:
            before = deepcopy(state)
            after, _ = policy.step(state, decision)
            require(state == before, f"expected the state {before!s:.60}; got {state!s:.60}")
            state = after


def survives_json(policy: CompletePolicy) -> None:
    """A state that went through JSON continues the same."""
    for run in runs():
        state = policy.init()
        for decision in run:
            after, want = policy.step(state, decision)
            again, got = policy.step(json.loads(json.dumps(dict(state))), decision)
            require(np.array_equal(got, want), f"expected the weights {want!s:.60}; got {got!s:.60}")
            require(dict(again) == dict(after), f"expected the state {after!s:.60}; got {again!s:.60}")
            state = after


def never_suspicious(policy: CompletePolicy) -> None:
    """A client that was never flagged nor in doubt keeps full weight and is asked."""
    for run in runs():
        clean = [
            replace(
                d,
                client_ids=(*d.client_ids, "good"),
                flagged=np.append(d.flagged, False),
                severity=np.append(d.severity, 0.0),
                doubted=np.append(d.doubted, False),
            )
            for d in run
        ]
        state, out = play(policy, clean)
        weights = [float(w[-1]) for w in out]
        require(all(w == 1 for w in weights), f"expected weight 1 in every round; got {weights!s:.60}")
        for client in ("good", "never seen"):
            got = policy.asks(client, state)
            require(got is True, f"expected that the client {client!r} is asked; got {got!r}")


def asks_yes_or_no(policy: CompletePolicy) -> None:
    """Whether a client is asked is True or False."""
    for run in runs():
        state, _ = play(policy, run)
        for got in (policy.asks(c, state) for c in "abcdef"):
            require(got in (True, False), f"expected True or False; got {got!r}")


def doubt_excludes_nobody(policy: CompletePolicy) -> None:
    """A client that is only ever in doubt is in no state of excluded clients, and is asked."""
    for run in runs():
        only = [replace(d, flagged=np.zeros(len(d.flagged), bool), doubted=d.doubted | d.flagged) for d in run]
        state, _ = play(policy, only)
        require(not state, f"expected no excluded client; got {dict(state)!s:.60}")
        away = [c for c in "abcdef" if not policy.asks(c, state)]
        require(not away, f"expected that all clients are asked; got {', '.join(away)} that are not")


LAWS = laws(
    weights_in_range, permutation, state_untouched, survives_json, never_suspicious, doubt_excludes_nobody,
    asks_yes_or_no,
)  # fmt: skip
