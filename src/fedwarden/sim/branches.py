"""A change of some clients' data before it happens: one federation, continued once for each thing that may happen.

All branches share the rounds before the change, bit for bit, so what tells them apart is the change alone. Each
observer has an auditor of its own and sees what its party sees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

from ..audit.auditor import Auditor
from ..core.errors import ConfigError
from ..core.types import Observation
from .data.sources import Dataset
from .data.world import load_data
from .federation import Federation
from .observers import Held, Rewrite, Sight, own_samples
from .scenario import AttackConfig, Scenario

Changes = Sequence[AttackConfig]
OnRound = Callable[[str, int], None]


@dataclass(frozen=True)
class ObserverSettings:
    """How observers look: who they are, on how many samples, at what, and over how many past rounds.

    ``held`` says where the samples come from: the observer's own data, or test data that nobody trains on.
    """

    observers: tuple[str, ...] = ("0",)
    probe: int = 128
    sources: tuple[str, ...] | None = None
    metrics: tuple[str, ...] = ("cosine", "procrustes", "cmd")
    per_layer: bool = False
    window: int = 5
    alpha: float = 0.05
    held: Held = "own"


@dataclass(frozen=True)
class Measures:
    """What the parties do against being read: rewrites of the updates that clients send, and of the server's."""

    senders: Mapping[str, Rewrite] = field(default_factory=dict)
    publisher: Rewrite | None = None


@dataclass(frozen=True)
class Branch:
    """What one continuation showed: the observations of each observer, and by round the clean accuracy and loss."""

    seen: dict[str, list[Observation]]
    accuracy: dict[int, float]
    loss: dict[int, float] = field(default_factory=dict)


def rehearse(
    scenario: Scenario,
    start: int,
    branches: Mapping[str, Changes],
    observing: ObserverSettings,
    measures: Measures | None = None,
    tests: int | None = None,
    on_round: OnRound | None = None,
    data: Dataset | None = None,
) -> tuple[Branch, dict[str, Branch]]:
    """The rounds before ``start``, and from there to the scenario's end each of the branches, by name.

    A branch is a list of attacks on the data, none of them before ``start``, in addition to those of the scenario.
    ``tests`` are the test samples that the accuracy is measured on, all by default; ``data`` is the scenario's data
    set, where it is loaded already.
    """
    if scenario.task.name != "classification":
        raise ConfigError(f"an audit compares what is told of classes; the scenario's task is {scenario.task.name!r}")
    if data is None:
        data = load_data(scenario)
    trunk = _stage(scenario, data, observing, measures or Measures(), tests)
    before = trunk.play(start - 1, "", on_round)
    state, minds = trunk.federation.state_dict(), {c: a.state_dict() for c, a in trunk.auditors.items()}
    found = {}
    for name, changes in branches.items():
        if early := [c.name for c in changes if any(c.strength(t) for t in range(1, start))]:
            raise ValueError(f"a change starts in round {start} or later; {early[0]!r} starts before")
        altered = scenario.model_copy(update={"attacks": (*scenario.attacks, *changes)})
        branch = _stage(altered, data, observing, trunk.measures(), tests)
        branch.federation.load_state_dict(state)
        for client, auditor in branch.auditors.items():
            auditor.load_state_dict(minds[client])
        found[name] = branch.play(scenario.rounds, name, on_round)
    return before, found


@dataclass(frozen=True, eq=False)
class _Stage:
    """A federation and its auditors."""

    federation: Federation
    auditors: dict[str, Auditor]
    seen: dict[str, list[Observation]]

    def play(self, last: int, name: str, on_round: OnRound | None) -> Branch:
        accuracy, loss = {}, {}
        for record in self.federation.play() if self.federation.round < last else ():
            accuracy[record.round], loss[record.round] = record.metrics["accuracy"], record.metrics["loss"]
            if on_round:
                on_round(name, record.round)
            if record.round == last:
                break
        return Branch(self.seen, accuracy, loss)

    def measures(self) -> Measures:
        """What the parties do, with a memory of their own."""
        return deepcopy(Measures(self.federation.senders, self.federation.publisher))


def _stage(
    scenario: Scenario, data: Dataset, observing: ObserverSettings, measures: Measures, tests: int | None
) -> _Stage:
    federation = Federation(scenario, data)
    auditors: dict[str, Auditor] = {}
    seen: dict[str, list[Observation]] = {}
    for client in observing.observers:
        samples, labels = own_samples(federation.world, client, observing.probe, scenario.seed, observing.held)
        seen[client] = []
        auditors[client] = Auditor(
            federation.model, samples, labels, n=scenario.data.clients, remove_own=client in federation.clients,
            sources=observing.sources, metrics=observing.metrics, per_layer=observing.per_layer,
            window=observing.window, alpha=observing.alpha,
            record=seen[client].extend, classes=data.class_names,
        )  # fmt: skip
        federation.observers[client] = partial(_observe, auditors[client])
    data = federation.world.data
    few = replace(data, x_test=data.x_test[:tests], y_test=data.y_test[:tests])
    federation.world = replace(federation.world, data=few)
    federation.senders, federation.publisher = dict(measures.senders), measures.publisher
    return _Stage(federation, auditors, seen)


def _observe(auditor: Auditor, sight: Sight) -> None:
    auditor.observe(sight.round, sight.params, sight.own, sight.share)
