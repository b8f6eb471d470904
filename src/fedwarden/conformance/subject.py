"""What the laws are pointed at: a rule as its paper defines it, and a function that claims to be that rule."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..aggregators.common import combine
from ..core.registry import make
from ..core.types import Cohort
from ..guard.warden import Warden
from ..updates.updates import Updates
from .component import equipped, of_size
from .law import Array, Broken

Function = Callable[..., Any]
"""A rule: (rows, **options) -> (d,). May also take clients as lists of layers, and ``num_examples``."""


@dataclass(frozen=True)
class Rule:
    """A rule as its paper defines it: the loop, the options the laws call it with, and where it is defined.

    An option that is a function is called with d: the root update of FLTrust has the size of the model.
    """

    golden: Callable[..., Array] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    least: Callable[[Mapping[str, Any]], int] = lambda options: 1
    needs: str = "n >= 1"
    tolerance: float = 1e-6


UNKNOWN = Rule()


@dataclass(frozen=True)
class Subject:
    """A function under examination, the rule that it claims to be, and the options it is called with."""

    function: Function
    rule: Rule = UNKNOWN
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    registered: bool = False

    @property
    def least(self) -> int:
        """The smallest number of clients the rule is defined for at these options."""
        return self.rule.least(self.options)

    def with_size(self, d: int) -> dict[str, Any]:
        """The options for rows of d parameters."""
        return {key: value(d) if callable(value) else value for key, value in self.options.items()}

    def __call__(self, rows: Any, **more: Any) -> Array:
        """The function's answer as (d,) float64; it gets a copy, so that one that writes to it breaks one law only."""
        return flat(self.function(deepcopy(rows), **self.with_size(_size(rows)), **more))

    def golden(self, rows: Array) -> Array:
        """The paper's answer."""
        assert self.rule.golden is not None
        return self.rule.golden(rows, **self.with_size(rows.shape[1]))

    def takes(self, option: str) -> bool:
        """Whether the function names an option."""
        return option in inspect.signature(self.function).parameters


def flat(result: Any) -> Array:
    """Whatever a library gives back as (d,) float64: an array, a tensor, a list of layers, an Aggregate."""
    result = getattr(result, "update", result) if not isinstance(result, dict) else list(result.values())
    if result is None:
        raise Broken("returned nothing")
    if isinstance(result, Tensor):
        return np.asarray(result.detach().cpu().double().numpy(), dtype=np.float64).reshape(-1)
    if isinstance(result, np.ndarray):
        return result.astype(np.float64).reshape(-1)
    return np.concatenate([flat(layer) for layer in result]) if len(result) else np.zeros(0)


def registered(name: str) -> Function:
    """A rule of the registry as a plain function; with example counts it goes through a warden, as in a federation."""

    def function(rows: Any, num_examples: ArrayLike | None = None, **options: Any) -> Tensor:
        updates = Updates.of(rows)
        params = torch.zeros(updates.d, dtype=updates.dtype)
        aggregator = equipped("aggregator", make("aggregator", name, **options), of_size(updates.d))
        if num_examples is None:
            return combine(aggregator, updates, params=params).update
        ids, counts = tuple(str(i) for i in range(len(updates))), np.asarray(num_examples, dtype=np.float64)
        return Warden(aggregator=aggregator).step(Cohort(1, ids, updates, counts, params)).update

    function.__name__ = name
    return function


def _size(rows: Any) -> int:
    if isinstance(rows, np.ndarray | Tensor):
        return int(rows.shape[1])
    return sum(int(np.size(layer)) for layer in rows[0])


def layered(rows: Array, counters: Sequence[int] | None = None) -> list[list[Any]]:
    """Rows of 17 values as clients of two float32 layers and, where given, one integer counter at the end."""
    clients: list[list[Any]] = [[row[:12].reshape(3, 4).copy(), row[12:].copy()] for row in rows.astype(np.float32)]
    for client, counter in zip(clients, counters or [], strict=False):
        client.append(np.array(counter, dtype=np.int64))
    return clients


def as_bfloat16(rows: Array) -> Tensor:
    """Rows as a bfloat16 tensor: NumPy has no such type."""
    return torch.tensor(rows).to(torch.bfloat16)
