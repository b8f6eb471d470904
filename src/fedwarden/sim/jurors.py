"""What named jurors of a simulated federation measure: their own losses under the global model that they receive."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from ..core.generators import torch_rng
from ..guard.jury import EXAMPLES
from ..signals.harm import without_absent
from .data.world import Rows, World
from .evaluation import Question, questions
from .tasks import Task


def some_of(rows: Rows, most: int) -> Rows:
    """So many rows at most, evenly over all of them.

    >>> some_of(np.arange(10), 4).tolist(), some_of(np.arange(3), 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    taken = min(most, len(rows))
    return rows[np.arange(taken) * len(rows) // max(taken, 1)]


class Jurors:
    """The questions of the named jurors: some of their own training rows, the same in every round.

    A classifier is asked among the classes of a juror's rows alone, so that learning another class is no loss to it.
    """

    def __init__(self, names: Collection[str], task: Task, world: World, seed: int, device: torch.device) -> None:
        self.task = task
        self.asked: Mapping[str, list[Question]] = {}
        for name in sorted(names):
            rows, rng = some_of(world.rows[name], EXAMPLES), torch_rng(seed, "juror", 0, name)
            self.asked |= {name: questions(task, world.x[rows], world.y[rows], rng, device)}

    def __contains__(self, client: str) -> bool:
        return client in self.asked

    @torch.no_grad()
    def losses(self, model: nn.Module, client: str) -> Tensor:
        """The loss of each of a juror's examples."""
        model.eval()
        return torch.cat([without_absent(self.task.losses, model(x), right).cpu() for x, right in self.asked[client]])
