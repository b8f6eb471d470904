"""What a signal, a history, a rule, a policy and an aggregator are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar

import numpy as np

from .stats import Mask, Scores, Weights
from .types import Aggregate, Cohort, Reading, Server, State, Verdict

T = TypeVar("T")

Signal = Callable[[Cohort], Scores | Reading]
"""Scores (n,) of a cohort, alone or with the parts that make them up; higher = more suspicious.

One with a method ``begin(cohort)`` gets the clients that were let in before a GPU has to be waited for. One with
``once = True`` is measured once in a round, also where the guard measures others again without the flagged clients.
"""

Rule = Callable[[Scores, int], Verdict]
"""Judges the scores of the clients in good standing; the number counts the tests of the run so far, from 1."""


class History(Protocol):
    """Turns this round's values into scores with what is remembered of each client, by id."""

    def init(self) -> State: ...

    def step(
        self, state: State, client_ids: tuple[str, ...], values: Scores, trusted: Mask | None = None
    ) -> tuple[State, Scores]:
        """New state and scores; ``trusted`` marks the clients in good standing, where a cohort's spread matters."""
        ...


@dataclass(frozen=True, eq=False)
class Findings:
    """What the watches found in a round: the clients that are flagged or in doubt, and how far out each client stands.

    ``flagged`` marks clients that a watch excludes, ``doubted`` clients that stand out for now. ``far`` is how far out
    each stands, or a function that tells it: few policies ask. What a policy draws at random hangs on the ``secret``
    of the run and the ``round``. ``against`` is the log of the capital of the bet that a client does harm, less that
    of the bet that it helps, where harm is measured; empty elsewhere.
    """

    client_ids: tuple[str, ...]
    flagged: Mask
    far: Scores | Callable[[], Scores]
    doubted: Mask = field(default_factory=lambda: np.zeros(0, bool))
    round: int = 0
    secret: int = 0
    against: Scores = field(default_factory=lambda: np.zeros(0))

    @cached_property
    def severity(self) -> Scores:
        """The largest robust z-score of each client over the watches, at least 0."""
        return self.far() if callable(self.far) else self.far


FOR_GOOD = -1  # of an excluded client, in place of its clean rounds


class Policy(Protocol):
    """Turns findings into weights in [0, 1].

    Its state maps each excluded client to its clean rounds since, or to -1 where it is excluded for good.
    """

    def init(self) -> Mapping[str, int]: ...

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]: ...

    def asks(self, client_id: str, excluded: Mapping[str, int]) -> bool:
        """Whether the client should still be asked for updates."""
        ...


class Aggregator(Protocol):
    """Combines the rows of a cohort; ``weights`` in [0, 1] come from the policy, 0 = leave out."""

    def init(self) -> State: ...

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]: ...


def equip(component: T, server: Server) -> T:
    """The component with what it needs of the server; one that needs nothing is returned as it is."""
    made: T = component.equip(server) if hasattr(component, "equip") else component
    return made
