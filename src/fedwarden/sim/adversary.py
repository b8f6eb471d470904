"""The clients that forge what they send: rewrites their rows of a round after training, before the guard sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..attacks import DataAttack, Effect, ModelAttack, View
from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.seeds import numpy_rng
from ..core.stats import Mask, Weights
from .changes import Change
from .scenario import AttackConfig, Scenario

Judge = Callable[[Tensor], Mask]
"""Which of the whole models (n, d) of a round the guard would not object to."""
Foresee = Callable[[Tensor], tuple[Tensor, Weights, Mask]]
"""What becomes of the models of a round: the change of the global model, their weights in it, and as a judge says."""


@dataclass(frozen=True, eq=False)
class Forger:
    """One attack on the model, or a difference in how updates are sent, and the clients that carry it out together.

    ``key`` gives it random numbers of its own.
    """

    key: str
    config: AttackConfig
    attack: ModelAttack
    members: frozenset[str]


@dataclass(frozen=True, eq=False)
class Round:
    """What a round looks like when the clients have trained; rows of ``models`` are rewritten."""

    models: Tensor
    params: Tensor
    previous: Tensor | None
    number: int
    clients: Sequence[str]
    judge: Judge
    foresee: Foresee | None = None


@dataclass(frozen=True, eq=False)
class Adversary:
    """All attacks on the model; ``columns`` are its parameters, since nobody forges the counters of a BatchNorm."""

    forgers: tuple[Forger, ...]
    attackers: frozenset[str]
    columns: Tensor
    seed: int
    plans: tuple[tuple[AttackConfig, tuple[str, ...]], ...]
    """Every difference and attack, on data or model, with the clients that carry it out."""

    @classmethod
    def of(cls, scenario: Scenario, measured: Sequence[tuple[int, int]], device: torch.device) -> Adversary:
        forgers = []
        ids = scenario.client_ids
        plans = []
        for config, number, members in scenario.plans():
            attack, names = config.make_part(), tuple(ids[i] for i in members)
            plans.append((config, names))
            if isinstance(attack, ModelAttack):
                key = str(number) if config.word == "attack" else f"{config.word} {number}"
                forgers.append(Forger(key, config, attack, frozenset(names)))
            elif not isinstance(attack, DataAttack | Change):
                raise ConfigError(
                    f"{config.word} {config.name!r} has neither 'poison', for data, nor 'forge', for updates"
                )
        forgers.sort(key=lambda forger: forger.attack.knowledge == "all")  # who knows all knows what the others send
        columns = torch.cat([torch.arange(a, b, device=device) for a, b in measured])
        attackers = frozenset(ids[i] for i in scenario.attackers())
        return cls(tuple(forgers), attackers, columns, scenario.seed, tuple(plans))

    def claims(self, t: int) -> dict[str, float]:
        """How many times its examples each attacker claims in round t."""
        return {c: config.claims for config, members in self.plans if config.strength(t) for c in members}

    def act(self, round: Round) -> list[Note]:
        """Let every attack of the round rewrite its rows; returns which could not, and why."""
        notes = []
        for forger in self.forgers:
            mine = [i for i, client in enumerate(round.clients) if client in forger.members]
            strength = forger.config.strength(round.number)
            if mine and strength:
                trained = round.models[mine]
                try:
                    self._forge(forger, round, mine, trained, strength)
                except ValueError as error:
                    round.models[mine] = trained
                    notes.append(Note.of("attack_failed", attack=forger.config.name, error=str(error)))
        return notes

    def _forge(self, forger: Forger, round: Round, mine: list[int], trained: Tensor, strength: float) -> None:
        base = round.params[self.columns]
        own = trained[:, self.columns] - base

        def send(rows: Tensor) -> None:
            forged = trained.clone()
            forged[:, self.columns] = base + rows
            round.models[mine] = forged

        def accepts(rows: Tensor) -> Mask:
            send(rows)
            return round.judge(round.models)[mine]

        def outcome(rows: Tensor) -> Effect:
            assert round.foresee is not None
            send(rows)
            update, weights, accepted = round.foresee(round.models)
            return Effect(update[self.columns], weights[mine], accepted[mine])

        informed = forger.attack.knowledge == "all"
        honest = [i for i, client in enumerate(round.clients) if client not in self.attackers]
        view = View(
            own=own,
            others=round.models[honest][:, self.columns] - base if informed else None,
            params=base,
            previous=None if round.previous is None else round.previous[self.columns],
            round=round.number,
            n=len(round.clients),
            accepts=accepts if informed else None,
            clients=tuple(round.clients[i] for i in honest) if informed else (),
            outcome=outcome if informed and round.foresee else None,
        )
        rng = numpy_rng(self.seed, "forge", round.number, forger.key)
        forged = torch.as_tensor(forger.attack.forge(view, rng)).to(own)
        if forged.shape != own.shape:
            raise ValueError(f"forge returned {tuple(forged.shape)}; expected {tuple(own.shape)}, as view.own has")
        send(torch.lerp(own, forged, strength))
