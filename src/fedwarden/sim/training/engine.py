"""Trains groups of clients the fastest way this machine knows, always with the same result."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models.layout import Layout
from ..tasks import Classification, Task
from .optimizer import LocalTraining
from .stacked import Stacked
from .trainer import Shard, train_sequential, train_stacked

GROUP = 10  # clients; 5 or 25 take 0.6 to 1.6 times as long, one at a time 2 to 11 times
STACKED_SIZE = 1_000_000  # parameters up to which stacking is faster: of 1.2 M it takes 1.1 times as long


@dataclass(frozen=True, eq=False)
class Engine:
    """A model, its task and training, and the clients' data; ``group`` clients are trained at once (0: in turn).

    ``own`` is the training of clients that train in another way than the rest; only clients that train alike are
    trained together.
    """

    model: nn.Module
    training: LocalTraining
    seed: int
    x: Tensor
    y: Tensor
    rows: Mapping[str, NDArray[np.int64]]
    group: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    task: Task = field(default_factory=Classification)
    own: Mapping[str, LocalTraining] = field(default_factory=dict)

    @cached_property
    def others(self) -> dict[LocalTraining, Engine]:
        """The same engine for each training that some clients have of their own."""
        return {training: replace(self, training=training, own={}) for training in {*self.own.values()}}

    @cached_property
    def layout(self) -> Layout:
        return Layout.of(self.model)

    @cached_property
    def stacked(self) -> Stacked | None:
        """The model as a stacked one, which knows the gradient of classification alone."""
        return Stacked.of(self.model) if isinstance(self.task, Classification) else None

    @cached_property
    def captured(self) -> Any:
        """Training in graphs that a GPU replays, where fedwarden-research is installed and the GPU holds the data."""
        way = "one_model" if self.stacked is None or self.group == 0 else "stacked"
        found = tuple(entry_points(group="fedwarden.training", name=way))
        on_gpu = self.device.type == "cuda" and isinstance(self.task, Classification) and fits(self.x, self.device)
        return found[0].load()(self) if on_gpu and found else None

    def train(
        self,
        params: Tensor,
        round: int,
        client_ids: Sequence[str],
        out: Tensor,
        changed: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> None:
        """Train these clients together; row i of ``out`` becomes client i's model.

        ``changed`` are the rows of clients that hold others in this round than at first, as many of them.
        """
        trainings = {self.own.get(c, self.training) for c in client_ids}
        if len(trainings) > 1:
            raise ValueError(f"clients that are trained together train alike; got {len(trainings)} trainings")
        if trainings - {self.training}:
            return self.others[trainings.pop()].train(params, round, client_ids, out, changed)
        held = changed or {}
        shards = [Shard(c, self.x, self.y, held.get(c, self.rows[c])) for c in client_ids]
        if self.stacked is None or self.group == 0:
            # a model that is trained both ways draws its dropout on the CPU, to the same end
            home = params.device if self.stacked is None else torch.device("cpu")
            if self.captured is not None:
                self.captured.train(params, shards, round, self.seed, out, home)
            else:
                train_sequential(
                    self.model, self.layout, params, shards, self.training, round, self.seed, out, self.task, home
                )
        elif self.captured is not None:
            self.captured.train(params, shards, round, self.seed, out)
        else:
            train_stacked(self.stacked, self.layout, params, shards, self.training, round, self.seed, out)
        return None

    def groups(self, client_ids: Sequence[str]) -> list[list[int]]:
        """Positions of the clients that are trained together: alike in size, and as many groups for every core.

        The answer depends on the machine and not on how many workers a run has, so neither do its bits.
        """
        alike: dict[LocalTraining, list[int]] = {}
        for i, client in enumerate(client_ids):
            alike.setdefault(self.own.get(client, self.training), []).append(i)
        if self.device.type == "cuda" and self.group:
            return list(alike.values())
        groups, cores = [], os.cpu_count() or 1
        for members in alike.values():
            n, order = len(members), sorted(members, key=lambda i: -len(self.rows[client_ids[i]]))
            count = min(n, cores * math.ceil(n / (cores * max(self.group, 1))))
            groups += [order[n * k // count : n * (k + 1) // count] for k in range(count)]
        return groups


def fits(data: Tensor, device: torch.device) -> bool:
    """Whether half of the memory that a GPU has free holds the data: the rest is for models and activations."""
    return device.type != "cuda" or 2 * data.nbytes <= torch.cuda.mem_get_info(device)[0]


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread in this block: on small models more of them stall more than they help."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def choose_group(engine: Engine, trainer: Literal["auto", "sequential", "stacked"], group: int | None) -> int:
    """The group size that a configuration asks for; left open, it hangs on the model's size alone, on any machine.

    >>> from fedwarden.sim.models import build_model
    >>> engine = Engine(build_model("mlp", {}, (8,), 3, 0), LocalTraining(), 0, torch.zeros(1, 8), torch.zeros(1), {})
    >>> choose_group(engine, "auto", None), choose_group(engine, "auto", 4), choose_group(engine, "sequential", None)
    (10, 4, 0)
    """
    if trainer == "sequential" or engine.stacked is None:
        return 0
    if group is not None:
        return group
    if engine.device.type == "cuda":
        return 1
    return GROUP if engine.layout.d <= STACKED_SIZE else int(trainer == "stacked")
