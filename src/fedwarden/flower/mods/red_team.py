"""A red team in a real federation: a node attacks where its own configuration says so by name, and nowhere else.

Whoever starts a node switches it on: ``flower-supernode --node-config 'red-team="sign_flip"'``. A run cannot: its
configuration is not read. An attack on updates is the work of :func:`attack_mod`; one on data is done where the data
are, by :func:`poisoned`. Each says so in the node's log in every round in which it acts.
"""

from __future__ import annotations

import logging
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from numpy.typing import NDArray
from torch import Tensor

from ...attacks import DataAttack, Examples, ModelAttack, View
from ...core.errors import ConfigError
from ...core.registry import lookup, make, parameters
from ...core.schedule import strength
from ...core.seeds import numpy_rng
from ...core.words import printable
from ...guard.arrays import BUFFERS, measured_ranges
from ..records import Template, is_training, round_of

NAME, OPTIONS, SEED = "red-team", "red-team-options", "red-team-seed"  # of a node's configuration
KEY = "fedwarden.red_team"  # the records in the node's context that hold what is remembered
SCHEDULE = ("start", "end", "ramp", "on", "off")  # options of every attack, as in a scenario
LOG = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class Order:
    """What a node is told to do: an attack, when, with which seed, and how many times its examples it claims."""

    name: str
    attack: ModelAttack | DataAttack
    when: Mapping[str, int]
    seed: int
    claims: float

    def strength(self, t: int) -> float:
        """How strong the attack is in round t, from 0 to 1."""
        return strength(t, **self.when)


def attack_mod(arrays: str = "arrays", config: str = "config", examples: str = "num-examples") -> Mod:
    """A mod that sends an attack on updates in place of what the node trained, if the node is told to.

    The node's configuration has the name of any attack of the registry under ``red-team``, its options and its
    schedule as in a scenario under ``red-team-options`` ("scale = 3.0, start = 5"), and a seed under
    ``red-team-seed``: nodes that share one draw alike, by default each draws for itself. A name or option that does
    not exist, and an attack that one node cannot carry out, raise in every round, so that the node sends nothing.
    ``arrays``, ``config`` and ``examples`` are the keys of the strategy's records and of its example counts.
    """

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        order = ordered(context)
        if order is None or not is_training(message):
            return call_next(message, context)
        t, received = round_of(message, config), message.content.array_records[arrays]
        reply = call_next(message, context)
        now = order.strength(t)
        if now and reply.has_content():
            if isinstance(order.attack, ModelAttack):
                reply.content[arrays] = forged(order, received, reply.content.array_records[arrays], context, t)
                LOG.warning(
                    "fedwarden: RED TEAM: in round %d node %d sends %s in place of what it trained (strength %g)",
                    t, context.node_id, order.name, now,
                )  # fmt: skip
            elif _noted(context, "poisoned") != t:
                raise ConfigError(
                    f"{NAME} = {order.name!r} is an attack on data, and the app of this node has not asked for it: "
                    "let it train on what fedwarden.flower.mods.poisoned() returns"
                )
            claim(reply.content, examples, order.claims)
        context.state[f"{KEY}.received"] = ArrayRecord(dict(received))
        _note(context, "received", t)
        return reply

    return mod


def poisoned(
    message: Message,
    context: Context,
    x: Tensor,
    y: Tensor,
    classes: int,
    pool: tuple[Tensor, Tensor] | None = None,
    config: str = "config",
) -> tuple[Tensor, Tensor]:
    """A node's samples as an attack on data leaves them, if the node is told to; else the same ones.

    ``classes`` counts the labels there are; ``pool`` are samples that no node trains on, which shifts of the data draw
    from. An attack at part of its strength changes that share of the samples, in later rounds the same ones and more.
    """
    order = ordered(context)
    if order is None or not isinstance(order.attack, DataAttack):
        return x, y
    t = round_of(message, config)
    now = order.strength(t)
    _note(context, "poisoned", t)
    if not now:
        return x, y
    own = Examples(x.cpu(), y.cpu().numpy())
    spare = Examples(*((own.x[:0], own.y[:0]) if pool is None else (pool[0].cpu(), pool[1].cpu().numpy())))
    try:
        made = order.attack.poison(own, spare, classes, numpy_rng(order.seed, "attack"))
    except ValueError as error:
        need = "" if pool is not None else "; poisoned() was given no pool"
        raise ConfigError(f"{NAME} = {order.name!r}: {error}{need}") from error
    taken = numpy_rng(order.seed, "taken").permutation(len(y))[: round(now * len(y))]
    LOG.warning(
        "fedwarden: RED TEAM: in round %d node %d trains on data changed by %s (%d of %d samples)",
        t, context.node_id, order.name, len(taken), len(y),
    )  # fmt: skip
    return _with(x, taken, made.x), _with(y, taken, torch.from_numpy(made.y))


def ordered(context: Context) -> Order | None:
    """What the node's configuration tells it to do; None where it names no attack."""
    given = context.node_config
    name = given.get(NAME)
    if name is None or name == "":
        return None
    if not isinstance(name, str):
        raise ConfigError(f"{NAME} is the name of an attack; got {name!r}")
    options = read_options(given.get(OPTIONS, ""))
    when = {key: options.pop(key) for key in SCHEDULE if key in options}
    if wrong := [key for key, value in when.items() if type(value) is not int or value < (key in ("start", "on"))]:
        raise ConfigError(f"{OPTIONS}: {wrong[0]} is a number of rounds; got {when[wrong[0]]!r}")
    if when.get("end", math.inf) < when.get("start", 1):
        raise ConfigError(f"{OPTIONS}: an attack cannot end in round {when['end']} before it starts")
    claims = options.pop("claims", 1.0)
    if not isinstance(claims, int | float) or not claims > 0:
        raise ConfigError(f"{OPTIONS}: claims is a factor above 0; got {claims!r}")
    seed = given.get(SEED, context.node_id)
    if type(seed) is not int:
        raise ConfigError(f"{SEED} is a whole number; got {seed!r}")
    return Order(name, by_one_node(name, options), when, seed, float(claims))


def read_options(text: object) -> dict[str, Any]:
    """Options as they stand in one value of a node's configuration.

    >>> read_options("scale = 3.0, mode = 'zero'")
    {'scale': 3.0, 'mode': 'zero'}
    """
    try:
        return dict(tomllib.loads(f"options = {{{text}}}")["options"])
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f'{OPTIONS} is like "scale = 3.0, start = 5"; got {printable(str(text))!r}') from error


def by_one_node(name: str, options: Mapping[str, Any]) -> ModelAttack | DataAttack:
    """An attack as one node can carry it out, from what it trained itself; ConfigError says why it cannot.

    >>> by_one_node("sign_flip", {"scale": 3.0})
    SignFlip(scale=3.0)
    >>> by_one_node("mimic", {})
    Traceback (most recent call last):
    fedwarden.core.errors.ConfigError: attack 'mimic' needs the updates of other clients, which one node does not see
    """
    chooses = "knowledge" in parameters(lookup("attack", name))
    attack: ModelAttack | DataAttack = make(
        "attack", name, **({"knowledge": "own"} | dict(options) if chooses else options)
    )
    if isinstance(attack, DataAttack):
        return attack
    if attack.knowledge == "all":
        raise ConfigError(f"attack {name!r} needs the updates of other clients, which one node does not see")
    own, params = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 1, 64)).astype(np.float32))
    made = attack.forge(View(own, None, params[0], None, round=1, n=3), np.random.default_rng(0))
    if torch.equal(made, own):
        raise ConfigError(
            f"attack {name!r} goes by the spread of several updates, and a node has one: it would send what it "
            "trained, unchanged; choose another attack or other options"
        )
    return attack


def forged(order: Order, received: ArrayRecord, sent: ArrayRecord, context: Context, t: int) -> ArrayRecord:
    """The arrays that a node sends in place of its own; buffers, and arrays of whole numbers, stay its own."""
    assert isinstance(order.attack, ModelAttack)
    whole = Template.of(received)
    kept = whole.settle(sent)[0]
    params = Template(tuple(slot for slot in whole.slots if measured_ranges([slot], BUFFERS)))
    if not params.slots:
        raise ConfigError(f"{NAME} = {order.name!r} changes parameters; the model has no floating-point arrays")
    base = params.flatten(received)
    own = (params.flatten(kept) - base)[None]
    before = context.state.array_records[f"{KEY}.received"] if _noted(context, "received") == t - 1 else None
    n = context.node_config.get("num-partitions", 1)
    view = View(
        own=own, others=None, params=base, previous=None if before is None else base - params.flatten(before),
        round=t, n=n if type(n) is int else 1,
    )  # fmt: skip
    made = order.attack.forge(view, numpy_rng(order.seed, "forge", t)).to(own)
    return ArrayRecord({**kept, **params.unflatten(base + torch.lerp(own, made, order.strength(t))[0])})


def claim(content: RecordDict, key: str, times: float) -> None:
    """Multiply the example counts of a reply."""
    for record in content.metric_records.values():
        count = record.get(key)
        if times != 1 and isinstance(count, int | float):
            record[key] = max(1, math.ceil(times * count))


def _note(context: Context, what: str, t: int) -> None:
    """Remember in the node's context in which round something was last done."""
    rounds = dict(context.state.config_records.get(KEY) or {})
    context.state[KEY] = ConfigRecord({**rounds, what: t})


def _noted(context: Context, what: str) -> object:
    rounds = context.state.config_records.get(KEY)
    return None if rounds is None else rounds.get(what)


def _with(old: Tensor, rows: NDArray[np.int64], new: Tensor) -> Tensor:
    """A copy in which some rows are new."""
    out, at = old.clone(), torch.from_numpy(rows)
    out[at.to(old.device)] = new[at].to(out)
    return out
