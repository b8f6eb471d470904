"""A scenario: data, partition, task, model, local training, attackers, guard and rounds, from one TOML file.

Reading one needs no torch: the commands that only show a run start without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ..core.config import Component, Part, Strict, as_table, override, parse, read_toml
from ..core.errors import ConfigError, nearest
from ..core.plugins import load
from ..core.registry import canonical, names
from ..core.schedule import strength
from ..core.seeds import numpy_rng
from ..core.types import LONGEST_NAME
from ..guard.config import GuardConfig
from ..sinks.data_points import MOST, Clients
from ..sinks.feed import Feed

ASKED = "which the scenario asks for"
MANY = 1_000_000  # clients or rounds; a typing error, or a damaged file, must not exhaust the memory


class DataConfig(Strict):
    """Which data, and who holds it.

    ``limit`` takes that many random training samples instead of all; ``reserve`` of them go to no client but to the
    server, which watches on the first ``probe``, if any, and trains on all of those; without ``reserve_labels`` it
    has their inputs alone, and does not train. A server without samples may watch on others: ``probe_from`` names a
    public data set of the same shape, or is "noise" or "optimised" for samples made from the global model.
    ``validation`` is the part each client keeps back to evaluate on. ``names`` are the clients' own names, in the
    order of the partition; those of the data set where it has names, else numbers from 0 on. ``joins`` gives, for a
    client by its name or number, the first round in which it takes part.
    """

    dataset: Part = Component(name="digits")
    folder: str | None = None
    partition: Part = Component(name="iid")
    clients: int = Field(20, ge=1, le=MANY)
    names: tuple[Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)], ...] | None = None
    validation: float = Field(0.0, ge=0.0, lt=1.0)
    limit: int | None = Field(None, ge=1)
    reserve: int = Field(0, ge=0)
    reserve_labels: bool = True
    probe: int = Field(128, ge=0)
    probe_from: Part = Component(name="reserve")
    joins: Mapping[str, Annotated[int, Field(ge=1)]] = {}

    @property
    def own(self) -> bool:
        """Whether the data are files or a function of the user's own: nobody knows the truth of them."""
        return ":" in self.dataset.name or bool({"file", "path"} & set(self.dataset.options))

    @model_validator(mode="after")
    def _one_each(self) -> DataConfig:
        if self.names is not None and len(set(self.names)) != len(self.names):
            twice = next(name for name in self.names if self.names.count(name) > 1)
            raise ValueError(f"every client needs a name of its own; {twice!r} is there twice")
        return self


class RecipeConfig(Strict):
    """How one client trains where it trains in another way than the rest; what is left out is as for the rest.

    ``rank`` is that of its adapters, at most that of the model's; it needs ``guard.adapters``.
    """

    optimizer: Literal["sgd", "adam"] | None = None
    lr: float | None = Field(None, gt=0)
    momentum: float | None = Field(None, ge=0, lt=1)
    weight_decay: float | None = Field(None, ge=0)
    epochs: int | None = Field(None, ge=1, le=10_000)
    batch_size: int | None = Field(None, ge=1, le=1_000_000)
    proximal: float | None = Field(None, ge=0)
    steps: int | None = Field(None, ge=1)
    rank: int | None = Field(None, ge=1)


class TrainConfig(Strict):
    """Local training, and how it is carried out here; ``steps`` ends a round's after so many batches.

    A batch of fewer samples than ``smallest_batch`` is left out. ``own`` gives single clients, by name or number, a
    training of their own.
    ``workers`` are processes, at most one per core. One that is silent for ``patience`` seconds, besides ten times as
    long as the slowest group of clients took so far, is killed and replaced.
    """

    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: float = Field(0.1, gt=0)
    momentum: float = Field(0.0, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    epochs: int = Field(1, ge=1, le=10_000)
    batch_size: int = Field(32, ge=1, le=1_000_000)
    proximal: float = Field(0.0, ge=0)
    steps: int | None = Field(None, ge=1)
    smallest_batch: int = Field(1, ge=1)
    participation: float = Field(1.0, gt=0, le=1)
    trainer: Literal["auto", "sequential", "stacked"] = "auto"
    group: int | None = Field(None, ge=1)
    workers: int | None = Field(None, ge=1)
    patience: float = Field(60.0, gt=0)
    device: str = "cpu"
    own: Mapping[str, RecipeConfig] = {}

    @model_validator(mode="after")
    def _some_batches(self) -> TrainConfig:
        for size in (self.batch_size, *(own.batch_size for own in self.own.values())):
            if size is not None and self.smallest_batch > size:
                raise ValueError(
                    f"smallest_batch is at most batch_size, or no batch is left; got {self.smallest_batch} and {size}"
                )
        return self


class AttackConfig(Component):
    """What some clients do, and when: the first ``count``, a random ``share``, or the ``clients`` listed.

    From round ``start`` to ``end``, rising over ``ramp`` rounds, ``on`` for some rounds and ``off`` for some in turn.
    While they attack they claim ``claims`` times the examples that they have.
    """

    article: ClassVar[str] = "an"
    word: ClassVar[str] = "attack"
    drawn_as: ClassVar[str] = "attackers"
    clients: tuple[int | str, ...] | None = None
    count: int | None = Field(None, ge=0, le=MANY)
    share: float | None = Field(None, ge=0, le=1)
    start: int = Field(1, ge=1)
    end: int | None = Field(None, ge=1)
    ramp: int = Field(0, ge=0)
    on: int | None = Field(None, ge=1)
    off: int = Field(0, ge=0)
    claims: float = Field(1.0, gt=0)

    @model_validator(mode="after")
    def _one_way(self) -> AttackConfig:
        if sum(x is not None for x in (self.clients, self.count, self.share)) != 1:
            raise ValueError(f"{self.article} {self.word} needs exactly one of 'clients', 'count' or 'share'")
        if self.end is not None and self.end < self.start:
            when = f"cannot end in round {self.end} when it starts in round {self.start}"
            raise ValueError(f"{self.article} {self.word} {when}")
        if (self.on is None) != (self.off == 0):
            raise ValueError(f"a period needs both 'on' and 'off', at least 1 round each; got {self.on} and {self.off}")
        return self

    def strength(self, t: int) -> float:
        """How strong the attack is in round t, from 0 to 1."""
        return strength(t, self.start, self.end, self.ramp, self.on, self.off)

    def make_part(self) -> Any:
        """What it does to data or updates."""
        return self.make("attack")

    def members(self, ids: Sequence[str], rng: np.random.Generator) -> list[int]:
        """The positions of the clients that do it."""
        n, where = len(ids), f"{self.word} {self.name!r}"
        if self.clients is not None:
            chosen = sorted({position(c, ids, where) if isinstance(c, str) else c for c in self.clients})
        elif self.count is not None:
            if self.count > n:
                raise ConfigError(f"{where} has count = {self.count}; there are {n}, numbered from 0")
            chosen = list(range(self.count))
        else:
            assert self.share is not None
            chosen = sorted(rng.permutation(n)[: round(self.share * n)].tolist())
        if chosen and not 0 <= chosen[0] <= chosen[-1] < n:
            raise ConfigError(f"{where} names clients {chosen}; there are {n}, numbered from 0")
        return chosen


def position(key: str | int, ids: Sequence[str], where: str) -> int:
    """The position of the client that a key of ``where`` names, by its name or by its number."""
    if isinstance(key, str) and key in ids:
        return ids.index(key)
    if str(key).isdecimal() and int(key) < len(ids):
        return int(key)
    raise ConfigError(f"{where}: there is no client {key!r}; {nearest(str(key), ids)}")


class ChangeConfig(AttackConfig):
    """A planned change of one client's data: a change, or an attack on data."""

    article: ClassVar[str] = "a"
    word: ClassVar[str] = "change"

    def make_part(self) -> Any:
        attack = ":" in self.name or canonical(self.name) in {*names("attack")} - {*names("change")}
        return self.make("attack" if attack else "change")


class DifferenceConfig(AttackConfig):
    """How some honest clients differ from the others: the same components and keys as for an attack.

    The clients stay honest: they are no attackers, and whoever leaves them out wrongs them.
    """

    article: ClassVar[str] = "a"
    word: ClassVar[str] = "difference"
    drawn_as: ClassVar[str] = "different clients"

    @model_validator(mode="after")
    def _true_counts(self) -> DifferenceConfig:
        if self.claims != 1:
            raise ValueError(f"an honest client claims the examples that it has; got claims = {self.claims:g}")
        return self


class AsynchronousConfig(Strict):
    """A server that waits for no round: it folds every ``buffer`` replies into the model, as FedBuff does.

    ``speeds`` is how many times longer the slowest client takes than the fastest, or a list: one speed for each client.
    ``rate`` is the learning rate of the server, by default what :func:`fedwarden.guard.window.server_rate` gives.
    """

    buffer: int = Field(10, ge=1)
    rate: float | None = Field(None, gt=0)
    speeds: Annotated[float, Field(ge=1)] | tuple[Annotated[float, Field(gt=0)], ...] = 1.0


class SinkConfig(Component):
    """Where a run's values are sent to, and of how many clients one by one."""

    clients: Clients = "all"
    most: int = Field(MOST, ge=0)

    def build(self) -> Feed:
        return Feed(self.make("sink"), self.clients, self.most)


class Scenario(Strict):
    """Everything that decides a run's numbers, but for the machine; and the sinks that they are sent to.

    ``differences`` say how some honest clients differ from the others, ``attacks`` what attackers do. Of the classes in
    ``recalls`` every round records the mean recall on the test set. ``personal`` names layers that stay at the clients.
    """

    name: str = "run"
    seed: int = Field(0, ge=0)
    rounds: int = Field(20, ge=1, le=MANY)
    target: float | None = Field(None, ge=0, le=1)
    target_loss: float | None = Field(None, gt=0)
    imports: tuple[str, ...] = ()
    checkpoint_every: int = Field(1, ge=1)
    data: DataConfig = DataConfig()
    task: Part = Component(name="classification")
    model: Part = Component(name="mlp")
    train: TrainConfig = TrainConfig()
    asynchronous: AsynchronousConfig | None = None
    attacks: tuple[AttackConfig, ...] = ()
    differences: tuple[DifferenceConfig, ...] = ()
    recalls: tuple[Annotated[int, Field(ge=0)], ...] = ()
    personal: tuple[str, ...] = ()
    guard: GuardConfig = GuardConfig()
    sinks: tuple[Annotated[SinkConfig, BeforeValidator(as_table)], ...] = ()

    @property
    def client_ids(self) -> tuple[str, ...]:
        """The clients' names, or their numbers where they have none."""
        return self.data.names or tuple(map(str, range(self.data.clients)))

    def client_named(self, key: str | int, where: str) -> str:
        """The id of the client that a key of ``where`` names, by its name or by its number."""
        return self.client_ids[position(key, self.client_ids, where)]

    def members(self) -> list[list[int]]:
        """The clients of each attack, by position."""
        return self._drawn(self.attacks)

    def plans(self) -> list[tuple[AttackConfig, int, list[int]]]:
        """All differences and then all attacks: each with its number in its own list, and its clients by position."""
        lists: tuple[Sequence[AttackConfig], ...] = (self.differences, self.attacks)
        return [plan for some in lists for plan in zip(some, range(len(some)), self._drawn(some), strict=True)]

    def _drawn(self, some: Sequence[AttackConfig]) -> list[list[int]]:
        rngs = (numpy_rng(self.seed, one.drawn_as, number) for number, one in enumerate(some))
        return [one.members(self.client_ids, rng) for one, rng in zip(some, rngs, strict=True)]

    def attackers(self) -> dict[int, list[AttackConfig]]:
        """The attacks of each attacking client, by position: the truth that only the simulator knows."""
        found: dict[int, list[AttackConfig]] = {}
        for attack, members in zip(self.attacks, self.members(), strict=True):
            for client in members:
                found.setdefault(client, []).append(attack)
        return found

    def truth(self) -> dict[str, frozenset[int]]:
        """The rounds in which each attacker attacks, by client id; who never attacks is no attacker."""
        ids = self.client_ids
        found = {
            ids[client]: frozenset(t for t in range(1, self.rounds + 1) if any(a.strength(t) for a in attacks))
            for client, attacks in sorted(self.attackers().items())
        }
        return {client: rounds for client, rounds in found.items() if rounds}


def load_scenario(
    source: Path | Mapping[str, Any], settings: Sequence[str] = (), folder: Path | None = None
) -> Scenario:
    """A scenario of one's own from a TOML file or a table, with overrides applied; what it imports is imported.

    ``folder`` is that of a file: there lie the data files that it names, and the modules of names ``module:thing``.
    What a ledger holds was written by others and is read by :func:`fedwarden.sim.recorded.recorded_scenario`.
    """
    folder = source.parent if isinstance(source, Path) else folder
    table = override(read_toml(source) if isinstance(source, Path) else source, settings)
    scenario = parse(Scenario, table)
    named = [scenario.guard.preset, *(part.name for part in _components(scenario))]
    own = tuple(dict.fromkeys(name.partition(":")[0] for name in named if ":" in name))
    if folder is not None and scenario.data.own and scenario.data.folder is None:
        data = scenario.data.model_copy(update={"folder": str(folder.resolve())})
        scenario = scenario.model_copy(update={"data": data})
    modules = [load(name, folder, ASKED).__name__ for name in (*scenario.imports, *own)]
    return scenario.model_copy(update={"imports": tuple(dict.fromkeys(modules))})


def _components(value: object) -> Iterator[Component]:
    """All components of a configuration."""
    if isinstance(value, Component):
        yield value
    if isinstance(value, BaseModel):
        value = [part for _, part in value]
    for part in value if isinstance(value, tuple | list) else ():
        yield from _components(part)
