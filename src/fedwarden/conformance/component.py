"""A registered component under examination, the server that it is lent, and the laws that hold for every kind."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from ..core.errors import ConfigError, MissingExtra
from ..core.registry import component, describe, lookup, make, parameters, summary
from ..core.types import Server
from .law import CannotTell, Law, laws, require

PASSED = {"model": {"shape", "classes"}}  # what the program passes by itself
PARAMETERS = 50  # of the model that is lent
RECORDED = ("aggregator", "history", "policy", "rule", "signal", "sink", "task")


@dataclass(frozen=True)
class Component:
    """A kind, a name, and the options to build it with."""

    kind: str
    name: str
    options: Mapping[str, object] = field(default_factory=dict)

    def make(self) -> Any:
        """Build it; where an optional dependency is missing, no law can tell anything."""
        try:
            return make(self.kind, self.name, **self.options)
        except MissingExtra as error:
            raise CannotTell(str(error)) from error


def first_sentence(it: Component) -> None:
    """Its docstring begins with one sentence, which lists and references show."""
    got = summary(it.kind, it.name)
    require(got.endswith((".", ";")), f"expected a docstring whose first line is a sentence; got {got!r:.60}")


def options_have_defaults(it: Component) -> None:
    """Every option has a default."""
    options = parameters(lookup(it.kind, it.name)).items()
    bare = [option for option, default in options if default is inspect.Parameter.empty]
    bare = [option for option in bare if option not in PASSED.get(it.kind, ())]
    require(not bare, f"expected a default for every option; got none for {', '.join(bare)}")


def recorded(it: Component) -> None:
    """What a ledger records of it builds it again."""
    made = it.make()
    table = describe(made)
    kind, name = table.pop("kind"), table["name"]
    wanted = f"expected a frozen dataclass, recorded as {it.kind} {it.name!r}"
    require((kind, name) == (it.kind, it.name), f"{wanted}; got {kind} {name!r}")
    require(component(it.kind, table) == made, f"expected {made!r:.80} again; got {component(it.kind, table)!r:.80}")


def laws_of(kind: str) -> tuple[Law, ...]:
    """Those of them that hold for a kind."""
    return laws(first_sentence, options_have_defaults, *([recorded] if kind in RECORDED else []))


def of_size(d: int) -> Server:
    """A server with a linear model of d parameters, whose own training moves every one of them by 1."""
    return Server(nn.Linear(d - 1, 1), root=lambda params, round: torch.ones(d, dtype=torch.float64))


def with_model() -> Server:
    """A server with a small model, labelled samples, and training of its own."""
    rng = np.random.default_rng(2)
    probe, labels = torch.tensor(rng.normal(size=(40, 3)), dtype=torch.float32), torch.tensor(rng.integers(2, size=40))
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
    return Server(model, probe, labels, of_size(PARAMETERS).root, torch.zeros(1, 3))


def equipped(kind: str, component: Any, server: Server) -> Any:
    """The component with what it needs of the server; where the server does not have it, no law can tell anything."""
    try:
        return component.equip(server)
    except ConfigError as error:
        raise CannotTell(f"the laws cannot lend this {kind} what it needs: {error}") from error
