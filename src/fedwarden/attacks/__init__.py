"""An attack changes what a malicious or broken client trains on or sends.

An attack on the data has ``poison``, one on the model has ``forge``; both are registered as attacks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Mask, Weights

Knowledge = Literal["own", "all"]
"""What attackers see: the updates they trained themselves, or those of all clients and the guard as well."""


class Examples(NamedTuple):
    """Inputs and their labels, row by row; labels are classes as int64, or numbers as float32, as the task says."""

    x: Tensor
    y: NDArray[Any]


@runtime_checkable
class DataAttack(Protocol):
    """Changes a client's training data."""

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        """What each row of ``own`` becomes; ``pool`` are training samples that no client holds."""
        ...


@runtime_checkable
class Divided(Protocol):
    """An attack on data of which the clients that carry it out do a part each."""

    def part(self, i: int, k: int) -> DataAttack:
        """What client i of k does, from 0."""
        ...


@runtime_checkable
class Targeted(Protocol):
    """An attack that wants something of the finished model."""

    def goal(self, test: Examples, classes: int) -> Examples | None:
        """Test samples as the attacker presents them, with the label it wants; None where no such label is known."""
        ...


@dataclass(frozen=True, eq=False)
class Effect:
    """What would become of a round: the aggregate (d,), the attackers' weights in it, and whom the guard accepts."""

    update: Tensor
    weights: Weights
    accepted: Mask


@dataclass(frozen=True, eq=False)
class View:
    """What attackers that act together see in a round; rows are updates (deltas) of the model's parameters.

    ``own`` (k, d) is what they trained themselves, ``others`` what the honest clients trained where that is known,
    ``previous`` the last change of the global model, None in the first round, and ``n`` counts the clients of the
    round. ``accepts`` tells which of k rows the guard would not object to, without telling the guard; ``outcome``
    tells what guard and aggregator together would make of the round with them. ``clients`` are the ids of the rows of
    ``others``.
    """

    own: Tensor
    others: Tensor | None
    params: Tensor
    previous: Tensor | None
    round: int
    n: int
    accepts: Callable[[Tensor], Mask] | None = None
    clients: tuple[str, ...] = ()
    outcome: Callable[[Tensor], Effect] | None = None

    @property
    def honest(self) -> Tensor:
        """The honest updates that the attackers go by: those of the others where they see any, else their own."""
        return self.own if self.others is None or not len(self.others) else self.others


@runtime_checkable
class ModelAttack(Protocol):
    """Changes the updates of all clients of one attack, who act together."""

    @property
    def knowledge(self) -> Knowledge: ...

    def forge(self, view: View, rng: np.random.Generator) -> Tensor:
        """The rows (k, d) that are sent in place of ``view.own``."""
        ...


def generator(rng: np.random.Generator) -> torch.Generator:
    """A torch generator that follows from a NumPy one."""
    return torch.Generator().manual_seed(int(rng.integers(2**62)))
