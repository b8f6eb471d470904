"""What one party of a simulated federation sees, and what it may do to what it sends.

An observer gets no more than its party would in a real federation: no other client's update, no verdict of the guard,
no truth about who attacks. A rewrite changes an update on its way: a client's own before it is sent, or the server's
before it is published.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from torch import Tensor

from ..core.seeds import numpy_rng
from .data.world import World


@dataclass(frozen=True, eq=False)
class Sight:
    """One party's view at the end of a round.

    ``params`` is the new global model (d,). ``own`` is the model that the party sent, None where it sent none. ``n``
    clients took part, and ``share`` is its own part of all their examples: 0 where it sent none.
    """

    round: int
    params: Tensor
    own: Tensor | None
    n: int
    share: float


Observer: TypeAlias = Callable[[Sight], object]
"""Sees each round; what it returns is dropped."""

Rewrite: TypeAlias = Callable[[int, Tensor], Tensor]
"""An update (d,) of a round as it is sent on."""


Held: TypeAlias = Literal["own", "test"]
"""Where an observer's samples come from: its own data, or test data that nobody trains on."""


def own_samples(world: World, client: str, most: int, seed: int, held: Held = "own") -> tuple[Tensor, Tensor]:
    """Inputs and labels of up to ``most`` samples of a client: those that it holds back, else those it trains on.

    With ``held="test"``, and for a party that is no client, they are of the test data.
    """
    back = world.held_out.get(client, np.zeros(0, dtype=np.int64))
    if held == "own" and client in world.rows:
        x, y, rows = world.x, world.y, back if len(back) else world.rows[client]
    else:
        x, y, rows = world.data.x_test, world.data.y_test, np.arange(len(world.data.y_test))
    chosen = np.sort(numpy_rng(seed, "own samples", 0, client).permutation(rows)[:most])
    return x[chosen], y[chosen]
