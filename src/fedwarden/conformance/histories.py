"""The laws of a history: a state by client id and this round's values in, a new state and scores out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from copy import deepcopy

import numpy as np

from ..core.protocols import CompleteHistory
from ..core.stats import Scores
from ..core.types import State
from .component import Component
from .law import laws, require

IDS = ("a", "b", "c", "d", "e", "f")
Round = tuple[tuple[str, ...], Scores]

subject = Component.make


def rounds(last: int = 7) -> Iterator[Round]:
    """The clients of each round with their values: clients come and go."""
    for t in range(1, last + 1):
        rng = np.random.default_rng(t)
        here = tuple(c for c in IDS if rng.random() < 0.7) or IDS
        yield here, rng.gamma(2.0, size=len(here))


def play(
    history: CompleteHistory, played: Iterable[Round], state: State | None = None
) -> tuple[State, list[dict[str, float]]]:
    """The last state, and the scores of each round by client."""
    state, out = history.init() if state is None else state, []
    for ids, values in played:
        state, scores = history.step(state, ids, values)
        out.append(dict(zip(ids, np.asarray(scores).tolist(), strict=True)))
    return state, out


def one_score_each(history: CompleteHistory) -> None:
    """Every client of a round has one finite score, and the state knows clients, and all of them as ""."""
    state, out = play(history, rounds())
    for (ids, _), scores in zip(rounds(), out, strict=True):
        bad = [c for c in ids if not np.isfinite(scores.get(c, np.nan))]
        require(not bad, f"expected a finite score for {', '.join(ids)}; got none for {', '.join(bad)}")
    require(set(state) <= {*IDS, ""}, f"expected a state by client id; got the keys {sorted(state)!s:.60}")


def permutation(history: CompleteHistory) -> None:
    """Clients are known by id, and their order does not matter."""
    _, straight = play(history, rounds())
    _, reverse = play(history, [(ids[::-1], values[::-1]) for ids, values in rounds()])
    for t, (a, b) in enumerate(zip(straight, reverse, strict=True), 1):
        for client, want in a.items():
            near = abs(b[client] - want) <= 1e-6 * max(abs(want), 1e-6)
            require(near, f"round {t} in reverse order: expected {want:.6g} for {client}; got {b[client]:.6g}")


def absent_unchanged(history: CompleteHistory) -> None:
    """What is remembered of a client that is away does not change."""
    state = history.init()
    for t, (ids, values) in enumerate(rounds(), 1):
        after, _ = history.step(state, ids, values)
        for client in set(IDS) - set(ids):
            got, want = after.get(client), state.get(client)
            require(got == want, f"round {t} without {client}: expected {want!s:.60}; got {got!s:.60}")
        state = after


def state_untouched(history: CompleteHistory) -> None:
    """A step does not change the state that it was given."""
    state, _ = play(history, rounds(3))
    copy = deepcopy(state)
    history.step(state, IDS, np.arange(6.0))
    require(state == copy, f"expected the state {copy!s:.60}; got {state!s:.60}")


def survives_json(history: CompleteHistory) -> None:
    """A state that went through JSON continues bit for bit."""
    want_state, want = play(history, rounds(8))
    half, _ = play(history, [*rounds(8)][:4])
    got_state, got = play(history, [*rounds(8)][4:], json.loads(json.dumps(dict(half))))
    require(got == want[4:], f"expected the scores {want[-1]!s:.60}; got {got[-1]!s:.60}")
    same = json.dumps(dict(got_state)) == json.dumps(dict(want_state))
    require(same, "expected the same state at the end; got another")


def input_untouched(history: CompleteHistory) -> None:
    """The values are only read."""
    values = np.arange(6.0)
    play(history, [(IDS, values), (IDS, values)])
    require(values.tolist() == list(range(6)), f"expected the values 0 to 5; got {values.tolist()}")


def always_worse(history: CompleteHistory) -> None:
    """A client that is worse than the rest in every round ends with the highest score."""
    rng = np.random.default_rng(0)
    _, out = play(history, [(IDS, np.array([*rng.uniform(-0.2, 0.2, 5), 9.0])) for _ in range(6)])
    highest = max(out[-1], key=lambda client: out[-1][client])
    require(highest == "f", f"f at 9, the others about 0: expected f highest after 6 rounds; got {highest}")


def empty_round(history: CompleteHistory) -> None:
    """A round without clients has no scores and leaves an empty state empty."""
    state, scores = history.step(history.init(), (), np.zeros(0))
    require(np.shape(scores) == (0,), f"expected no scores; got the shape {np.shape(scores)}")
    require(not state, f"expected an empty state; got {state!s:.60}")


LAWS = laws(
    one_score_each, permutation, absent_unchanged, state_untouched, survives_json, input_untouched, always_worse,
    empty_round,
)  # fmt: skip
