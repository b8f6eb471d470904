"""The clients' data: divided, poisoned, and what is held back to evaluate on or goes to nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...attacks import DataAttack, Divided, Examples
from ...attacks.shift import Shortage
from ...core.config import Component
from ...core.errors import ConfigError, FedwardenError, returned
from ...core.registry import blamed, lookup, make, parameters, required
from ...core.seeds import numpy_rng
from ..changes import Change
from ..scenario import AttackConfig, Scenario
from .own import check, of_clients
from .partition import Partition
from .sources import DataError, Dataset

Rows = NDArray[np.int64]


def undergone(orders: Sequence[Rows], strengths: Sequence[float]) -> Rows:
    """Which attacks each sample undergoes: bit j is 1 for the first of ``orders[j]``, as many as its strength says.

    >>> undergone([np.array([2, 0, 1]), np.array([1, 0, 2])], [1 / 3, 1.0]).tolist()
    [2, 2, 3]
    """
    bits = np.zeros(len(orders[0]), dtype=np.int64)
    for j, (order, strength) in enumerate(zip(orders, strengths, strict=True)):
        bits[order[: round(strength * len(order))]] |= 1 << j
    return bits


@dataclass(frozen=True, eq=False)
class Poisoned:
    """One client's samples, clean and as its differences and data attacks leave them; those of ``kept`` it trains on.

    ``versions`` holds the rows after each set of attacks that some round asks for, by the set's bits. An attack takes
    the samples in a fixed random order, so that a stronger one takes more and never others.
    """

    attacks: tuple[AttackConfig, ...]
    orders: tuple[Rows, ...]
    versions: Mapping[int, Rows]
    kept: Rows
    held: Rows

    def strengths(self, t: int) -> tuple[float, ...]:
        return tuple(attack.strength(t) for attack in self.attacks)

    def rows(self, t: int) -> Rows:
        """All its rows in round t."""
        bits = undergone(self.orders, self.strengths(t))
        out = self.versions[0].copy()
        for which, rows in self.versions.items():
            out[bits == which] = rows[bits == which]
        return out


@dataclass(frozen=True, eq=False)
class World:
    """All samples, clean and poisoned side by side, and who holds which rows of them in the first round.

    ``reserve`` are rows that no client holds, in random order.
    """

    data: Dataset
    x: Tensor
    y: Tensor
    rows: dict[str, Rows]
    held_out: dict[str, Rows]
    reserve: Rows
    poisoned: dict[str, Poisoned]

    def changed(self, t: int) -> dict[str, Rows]:
        """The training rows in round t of the clients whose data is not that of the first round."""
        return {c: p.rows(t)[p.kept] for c, p in self.poisoned.items() if p.strengths(t) != p.strengths(1)}

    def held_in(self, t: int) -> dict[str, Rows]:
        """The rows that each client holds back in round t."""
        moved = {c: p.rows(t)[p.held] for c, p in self.poisoned.items() if p.strengths(t) != p.strengths(1)}
        return {**self.held_out, **moved}


def build_world(scenario: Scenario, data: Dataset | None = None) -> World:
    """Load, divide, poison, and hold back the validation part of each client.

    Clients may share rows, so an attacker gets copies of its own. ``data`` is the data set where it is loaded already.
    """
    if data is None:
        data = load_data(scenario)
    scenario = settle(scenario, data)
    c, ids = scenario.data, scenario.client_ids
    if c.limit is not None and c.limit < len(data.y_train):
        data = restrict(data, np.sort(numpy_rng(scenario.seed, "limit").permutation(len(data.y_train))[: c.limit]))
    reserve = numpy_rng(scenario.seed, "reserve").permutation(len(data.y_train))[: c.reserve]
    attacks = _data_attacks(scenario, reserve)
    xs, ys = [data.x_train], [data.y_train]

    def place(samples: Examples) -> Rows:
        start = sum(map(len, ys))
        xs.append(samples.x)
        ys.append(torch.from_numpy(samples.y))
        return np.arange(start, start + len(samples.y))

    rows, held_out, poisoned = {}, {}, {}
    for i, (client, part) in enumerate(zip(ids, divide(data, reserve, scenario), strict=True)):
        if not len(part):
            raise ConfigError(
                f"{source(scenario)}: client {client} of {c.clients} has no data; use fewer clients or another "
                "partition"
            )
        order = numpy_rng(scenario.seed, "validation", 0, client).permutation(len(part))
        cut = round(c.validation * len(order))
        kept, held = np.sort(order[cut:]), np.sort(order[:cut])
        rows[client], held_out[client] = np.sort(part[kept]), np.sort(part[held])
        if i in attacks:
            orders, versions = _poison(client, part, attacks[i], data, scenario, place)
            poisoned[client] = p = Poisoned(tuple(a.config for a in attacks[i]), orders, versions, kept, held)
            rows[client], held_out[client] = p.rows(1)[kept], p.rows(1)[held]
    x, y = (xs[0], ys[0]) if len(xs) == 1 else (torch.cat(xs), torch.cat(ys))
    return World(data, x, y, rows, held_out, reserve, poisoned)


def load_data(scenario: Scenario) -> Dataset:
    """The whole data set of a scenario, checked."""
    c, where = scenario.data, source(scenario)
    options = {"folder": c.folder, **c.dataset.options}
    if "folder" not in parameters(lookup("dataset", c.dataset.name)):  # one's own function knows where its files are
        options.pop("folder")
    try:
        data = make("dataset", c.dataset.name, **options)
    except FedwardenError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or (told := blamed(error)) is None:
            raise
        raise DataError(f"{where} failed: {told}") from error
    return check(of_clients(data) if isinstance(data, dict | list) else data, where)


def source(scenario: Scenario) -> str:
    """What the data of a scenario come from, in words: a file, or the name of the data set."""
    dataset = scenario.data.dataset
    return str(dataset.options.get("file") or dataset.options.get("path") or f"dataset {dataset.name!r}")


def settle(scenario: Scenario, data: Dataset) -> Scenario:
    """The scenario with what it leaves to a data set that names its clients: who they are, and that they keep rows."""
    c, found = scenario.data, dict[str, object]()
    if data.names is not None and data.clients is not None:
        chosen = "partition" in c.model_fields_set
        partition = c.partition if chosen else Component(name="given")
        if partition.name == "given":
            first = int(str(partition.options.get("first", 0)))
            n = c.clients if "clients" in c.model_fields_set else max(1, len(data.clients) - first)
            if not chosen and n != len(data.names):
                raise ConfigError(
                    f"{source(scenario)}: expected {len(data.names)} clients, as it names; data.clients = {n}: leave "
                    'that out, or set data.partition to "given" for the first of them or "iid" to deal the rows out'
                )
            found = {"partition": partition, "clients": n, "names": c.names or data.names[first : first + n] or None}
    config = c.model_copy(update=found)
    if config.names is not None and len(config.names) != config.clients:
        raise ConfigError(
            f"{source(scenario)}: expected {len(config.names)} clients, as it names; data.clients = {config.clients}"
        )
    return scenario.model_copy(update={"data": config})


def divide(data: Dataset, reserve: Rows, scenario: Scenario) -> list[Rows]:
    """Rows of the training data for each client, without the reserve."""
    free, n = np.setdiff1d(np.arange(len(data.y_train)), reserve), scenario.data.clients
    if not len(free):
        raise ConfigError(
            f"data.reserve = {scenario.data.reserve} leaves nothing of {len(data.y_train)} training samples"
        )
    if n > len(free) and scenario.data.partition.name != "given":  # before any list of so many parts is made
        raise ConfigError(
            f"{n:,} clients need a training sample each; {source(scenario)} has {len(free):,}: use fewer clients"
        )
    found = _partition(scenario)(
        restrict(data, free) if len(reserve) else data, n, numpy_rng(scenario.seed, "partition")
    )
    parts = _parts(found, n, len(free), scenario.data.partition.name)
    return [free[part] for part in parts] if len(reserve) else parts


def _partition(scenario: Scenario) -> Partition:
    """The partition of a scenario: a component that is made from its options, or a plain function of one's own."""
    config = scenario.data.partition
    factory = lookup("partition", config.name)
    wanted = [name for name in required(factory) if name not in config.options]
    made = partial(factory, **config.options) if wanted else config.make("partition")
    if not callable(made) or len(wanted) not in (0, 3) or not set(config.options) <= set(parameters(factory)):
        raise ConfigError(
            f"partition {config.name!r} takes ({', '.join(parameters(factory))}); expected a function of "
            "(data, n, rng), and options with defaults, that gives each of n clients its rows"
        )
    found: Partition = made
    return found


def _parts(found: object, n: int, rows: int, name: str) -> list[Rows]:
    """What a partition gave, if it is rows for each client."""
    try:
        parts = [np.asarray(part) for part in found]  # type: ignore[attr-defined]
    except (TypeError, ValueError) as error:
        raise ConfigError(f"partition {name!r}: expected a list of rows for each client; got {found!r:.60}") from error
    if len(parts) != n:
        raise ConfigError(f"partition {name!r}: expected the rows of {n} clients; got {len(parts)}")
    for i, part in enumerate(parts):
        whole = part.ndim == 1 and (not len(part) or part.dtype.kind in "iu")
        if not whole or (len(part) and not 0 <= part.min() <= part.max() < rows):
            raise ConfigError(
                f"partition {name!r}: client {i}: expected whole numbers from 0 to {rows - 1}; got others"
            )
    return [part.astype(np.int64) for part in parts]


def restrict(data: Dataset, keep: Rows) -> Dataset:
    """The data set with these rows of its training data alone."""
    place = np.full(len(data.y_train), -1)
    place[keep] = np.arange(len(keep))
    given = None if data.clients is None else tuple(p[p >= 0] for p in (place[rows] for rows in data.clients))
    return replace(data, x_train=data.x_train[keep], y_train=data.y_train[keep], clients=given)


class Assault(NamedTuple):
    """A data attack on one client, or a difference: its place among the client's own, and its part of the reserve."""

    config: AttackConfig
    attack: DataAttack | Change
    number: int
    reserve: Rows

    def purpose(self, what: str) -> str:
        """What random numbers are drawn for: those of a difference are none of an attack's."""
        return what if self.config.word == "attack" else f"{what} of a {self.config.word}"


def _data_attacks(scenario: Scenario, reserve: Rows) -> dict[int, list[Assault]]:
    """Each client's differences and attacks on its data; the clients of one of them divide the reserve among them."""
    found: dict[int, list[Assault]] = {}
    seen: Counter[tuple[str, int]] = Counter()
    for config, _, members in scenario.plans():
        attack = config.make_part()
        for i, (client, share) in enumerate(zip(members, np.array_split(reserve, max(len(members), 1)), strict=False)):
            if isinstance(attack, DataAttack | Change):
                own = attack.part(i, len(members)) if isinstance(attack, Divided) else attack
                found.setdefault(client, []).append(Assault(config, own, seen[config.word, client], share))
            seen[config.word, client] += 1
    return found


def _poison(
    client: str, part: Rows, assaults: Sequence[Assault], data: Dataset, scenario: Scenario,
    place: Callable[[Examples], Rows],
) -> tuple[tuple[Rows, ...], dict[int, Rows]]:  # fmt: skip
    """The order in which each attack takes a client's samples, and the rows of every version that some round needs."""
    seed, y_train = scenario.seed, data.y_train.numpy()
    orders = tuple(numpy_rng(seed, a.purpose("taken"), a.number, client).permutation(len(part)) for a in assaults)
    strengths = {tuple(a.config.strength(t) for a in assaults) for t in range(1, scenario.rounds + 1)}
    versions = {0: part}
    for which in sorted({bits for s in strengths for bits in np.unique(undergone(orders, s)).tolist()} - {0}):
        samples = Examples(data.x_train[part], y_train[part])
        for j, a in enumerate(assaults):
            if which >> j & 1:
                pool, rng = (
                    Examples(data.x_train[a.reserve], y_train[a.reserve]),
                    numpy_rng(seed, a.purpose("attack"), a.number, client),
                )
                try:
                    if isinstance(a.attack, Change):
                        made = a.attack.change(samples, pool, data, rng)
                    else:
                        made = a.attack.poison(samples, pool, data.classes, rng)
                    fits = isinstance(made, tuple) and len(made) == 2 and len(made[0]) == len(made[1]) == len(part)
                    returned(fits, f"expected (inputs, labels) of {len(part)} samples", made)
                    samples = Examples(*made)
                except ValueError as error:
                    told = error.told(data.class_names) if isinstance(error, Shortage) else error
                    raise ConfigError(f"{a.config.word} {a.config.name!r} on client {client}: {told}") from error
        versions[which] = place(samples)
    return orders, versions
