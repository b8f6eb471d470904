"""What a signal, a history, a rule, a policy and an aggregator are.

What they may declare besides, such as what they ask for, is in ``CompleteSignal``, ``CompleteHistory``,
``CompletePolicy`` and ``CompleteAggregator``, each with what :func:`complete` gives to a component that does not
declare it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any, ClassVar, Protocol, Self

import numpy as np

from .stats import Mask, Scores, Weights
from .types import Aggregate, Cohort, Ids, Reading, Server, State, Verdict

Signal = Callable[[Cohort], Scores | Reading]
"""Scores (n,) of a cohort, alone or with the parts that make them up; higher = more suspicious."""

Rule = Callable[[Scores, int], Verdict]
"""Judges the scores of the clients in good standing; the number counts the tests of the run so far, from 1."""


class History(Protocol):
    """Turns this round's values into scores with what is remembered of each client, by id."""

    def step(self, state: State, client_ids: Ids, values: Scores, trusted: Mask | None = None) -> tuple[State, Scores]:
        """New state and scores; ``trusted`` marks the clients in good standing, where a cohort's spread matters."""
        ...


@dataclass(frozen=True, eq=False)
class Findings:
    """What the watches found in a round: the clients that are flagged or in doubt, and how far out each client stands.

    ``flagged`` marks clients that a watch excludes, ``doubted`` clients that stand out for now. ``severity`` is the
    largest robust z-score of each over the watches, at least 0. What a policy draws at random hangs on the ``secret``
    of the run and the ``round``. ``against`` is the log of the capital of the bet that a client does harm, less that
    of the bet that it helps, where harm is measured; empty elsewhere. Where clients are ``judged`` by their turns, a
    coin has to stay a coin.
    """

    client_ids: tuple[str, ...]
    flagged: Mask
    severity: Scores
    doubted: Mask = field(default_factory=lambda: np.zeros(0, bool))
    round: int = 0
    secret: int = 0
    against: Scores = field(default_factory=lambda: np.zeros(0))
    judged: bool = False


FOR_GOOD = -1  # of an excluded client, in place of its clean rounds


class Policy(Protocol):
    """Turns findings into weights in [0, 1].

    Its state maps each excluded client to its clean rounds since, or to -1 where it is excluded for good.
    """

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]: ...


class Aggregator(Protocol):
    """Combines the rows of a cohort; ``weights`` in [0, 1] come from the policy, 0 = leave out."""

    def step(self, state: State, cohort: Cohort, weights: Weights) -> tuple[State, Aggregate]: ...


class CompleteSignal(Protocol):
    """A signal and what it declares.

    ``words`` say what a flag means. With ``weights_only`` it looks at nothing but weights and claimed counts. With
    ``spread`` or ``pairs`` it asks for distances to the mean, or for the inner products of all pairs of updates.
    ``server`` is what it has been lent; one that cannot measure without a server has None until then. With ``jurors``
    it measures by what clients report that the operator has named as jurors.
    """

    words: ClassVar[str] = ""
    weights_only: ClassVar[bool] = False
    spread: ClassVar[bool] = False
    pairs: ClassVar[bool] = False
    server: ClassVar[Server | None] = Server()
    jurors: ClassVar[bool] = False

    def __call__(self, cohort: Cohort) -> Scores | Reading: ...

    def equip(self, server: Server) -> Self:
        """The same with what it needs of the server."""
        return self


class CompletePolicy(Policy, Protocol):
    """A policy and what it declares.

    One that ``tries`` lets clients in doubt into the model at times, on trial. One that ``suspends`` excludes clients
    until they are clean.
    """

    tries: ClassVar[bool] = False
    suspends: ClassVar[bool] = False

    def init(self) -> Mapping[str, int]:
        return {}

    def asks(self, client_id: str, excluded: Mapping[str, int]) -> bool:
        """Whether the client should still be asked for updates."""
        return True

    def chances(self, excluded: Mapping[str, int], findings: Findings) -> Scores:
        """The probability of each client of being in the model; 0 or 1 unless a coin of the policy decides.

        ``excluded`` is the policy's state after its step with these findings.
        """
        return np.array([float(client not in excluded) for client in findings.client_ids])


class CompleteAggregator(Aggregator, Protocol):
    """An aggregator and what it declares: with ``pairs`` it asks for the inner products of all pairs of updates."""

    pairs: ClassVar[bool] = False

    def init(self) -> State:
        return {}

    def equip(self, server: Server) -> Self:
        """The same with what it needs of the server."""
        return self


class CompleteHistory(History, Protocol):
    """A history and what it declares.

    With ``parts`` it asks for the parts of its signal as well: its values then have a column for each, after the
    signal's own, or are a single column where the signal has none.
    """

    parts: ClassVar[bool] = False

    def init(self) -> State:
        return {}


COMPLETE = {
    "signal": CompleteSignal,
    "history": CompleteHistory,
    "policy": CompletePolicy,
    "aggregator": CompleteAggregator,
}


def complete(kind: str, component: Any) -> Any:
    """A component, or a class of some, with what its kind may declare and it does not.

    >>> def far(cohort): ...
    >>> complete("signal", far).spread, far.equip(Server()) is far
    (False, True)
    """
    if isinstance(component, MethodType):
        component = partial(component)  # which can hold them
    alone = isinstance(component, FunctionType | partial)
    declared = vars(COMPLETE[kind]) if kind in COMPLETE else {}
    for name, value in declared.items():
        if name[0] != "_" and not hasattr(component, name):
            owner = component if alone or isinstance(component, type) else type(component)
            setattr(owner, name, MethodType(value, component) if alone and callable(value) else value)
    return component
