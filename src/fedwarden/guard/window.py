"""The latest updates of clients that answered before, which a few new replies are compared with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..core.reported import STALENESS, joined
from ..core.types import Cohort
from ..updates.updates import Updates
from .judge import Guard

WINDOW = 20
"""Clients that a buffer is compared with. With 16, agreement is tested against chance at the same level as in larger
rounds, see :func:`fedwarden.signals.opposition.informative`; the other 4 leave room for attackers."""


def server_rate(buffer: int, clients: int) -> float:
    """The server's learning rate with which one reply from each client moves the model as far as one synchronous round.

        eta = sqrt(K / n)  for buffers of K < n clients at work,   1 for K >= n

    On average n / K - 1 buffers are folded while a client works, so its update is discounted by sqrt(K / n). Then n / K
    buffers, each with weight eta sqrt(K / n) = K / n, add up to one step. Longer steps overshoot: each update starts
    from a model without those of all other clients at work.

    >>> server_rate(5, 20), server_rate(20, 5)
    (0.5, 1.0)
    """
    return math.sqrt(min(1.0, buffer / clients))


def refuse_jurors(guard: Guard) -> None:
    """Refuse jurors: they compare two successive models, and clients at work hold older ones."""
    if guard.jurors:
        raise ConfigError(
            "jurors compare the models of two rounds, and a buffer of replies is no round: leave jurors out"
        )


@dataclass(frozen=True, eq=False)
class Earlier:
    """A client's update (d,) to the model after ``version`` rounds; columns that are not measured hold what it sent."""

    client_id: str
    row: Tensor
    count: float
    version: int


@dataclass(frozen=True, eq=False)
class Window:
    """The latest update of each client that answered recently, the newest at the end."""

    entries: tuple[Earlier, ...] = ()

    def beside(self, replies: Cohort, began: Mapping[str, int]) -> Cohort:
        """A cohort of replies and the window; ``began`` has the version of the model that each reply started from."""
        ids, updates = replies.client_ids, replies.updates
        others = [e for e in self.entries if e.client_id not in ids][-WINDOW:]
        base = torch.zeros(updates.d, dtype=updates.dtype) if updates.base is None else updates.base
        cuts = [updates.d] if updates.array is not None else [s.stop - s.start for s in updates.segments]
        under = base.clone()
        for start, stop in updates.buffers:
            under[start:stop] = 0.0
        rows = [(e.row.to(base) + under).split(cuts) for e in others] + [updates.sent(i) for i in range(updates.n)]
        counts = np.array([*(e.count for e in others), *replies.num_examples])
        ages = [replies.round - 1 - v for v in (*(e.version for e in others), *(began[c] for c in ids))]
        told = {STALENESS: dict(zip(ids, map(float, ages[len(others) :]), strict=True))} if ids else {}
        return Cohort(
            replies.round,
            [*(e.client_id for e in others), *ids],
            Updates.of(rows, base, updates.measured) if rows else updates,
            counts,
            replies.params,
            reported=joined(replies.reported, told),
            output=replies.output,
            layers=replies.layers,
            context=[True] * len(others) + [False] * len(ids),
            ages=ages,
        )

    def size(self, buffer: int) -> int:
        """How many replies fill the next buffer; the first one has at least half a window.

        A single first reply could be compared with nothing, and no length would be too long.

        >>> Window().size(1), Window().size(40)
        (10, 40)
        """
        return buffer if self.entries else max(buffer, WINDOW // 2)

    def after(self, replies: Cohort, began: Mapping[str, int]) -> Window:
        """The window with these replies added; ``began`` has the version of the model that each client started from."""
        ids, n = replies.client_ids, len(replies)
        rows, base = [replies.updates.weighted_sum(one).clone() for one in np.eye(n)], replies.updates.base
        for start, stop in replies.updates.buffers:
            for row in rows:
                row[start:stop] += 0.0 if base is None else base[start:stop]
        new = [Earlier(c, rows[i], float(replies.claimed[i]), began[c]) for i, c in enumerate(ids)]
        return Window((*(e for e in self.entries if e.client_id not in ids), *new)[-WINDOW - n :])

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain numbers and tensors."""
        return {
            "clients": [e.client_id for e in self.entries],
            "numbers": [[e.count, e.version] for e in self.entries],
            "rows": [e.row for e in self.entries],
        }

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> Window:
        parts = zip(state["clients"], state["rows"], state["numbers"], strict=True)
        return cls(tuple(Earlier(client, row, count, int(version)) for client, row, (count, version) in parts))
