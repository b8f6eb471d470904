"""Trains groups of clients the fastest way this machine knows, always with the same result."""

from __future__ import annotations

import json
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...models.layout import Layout
from ..data.places import cache_folder
from ..tasks import Classification, Task
from .optimizer import LocalTraining
from .stacked import Stacked
from .trainer import Shard, train_sequential, train_stacked

CANDIDATES = (1, 5, 10, 25)
CALIBRATION_STEPS = 3
STACKED_MARGIN = 0.9  # stacking must be at least this much cheaper than one client at a time


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
        return [group for members in alike.values() for group in self._groups(members, client_ids)]

    def _groups(self, members: Sequence[int], client_ids: Sequence[str]) -> list[list[int]]:
        """The groups of clients that train alike."""
        n, cores = len(members), os.cpu_count() or 1
        if self.device.type == "cuda" and self.group:
            return [list(members)]
        order = sorted(members, key=lambda i: -len(self.rows[client_ids[i]]))
        count = min(n, cores * math.ceil(n / (cores * max(self.group, 1))))
        return [order[n * k // count : n * (k + 1) // count] for k in range(count)]


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


def calibrate(engine: Engine, cache: Path | None) -> int:
    """The group size with the lowest cost per client, from a few steps of each; 0 where stacking does not pay.

    Kept in a file per user, so that runs on one machine are grouped alike and give the same bits.
    """
    if engine.stacked is None:
        return 0
    key = _fingerprint(engine)
    known = _read(cache)
    if key not in known:
        with one_thread():  # as the workers train
            known[key] = _measure(engine)
        _write(cache, known)
    return int(known[key])


def choose_group(engine: Engine, trainer: Literal["auto", "sequential", "stacked"], group: int | None) -> int:
    """The group size that a configuration asks for; calibrated where it leaves that open."""
    if trainer == "sequential" or engine.stacked is None:
        return 0
    if group is not None:
        return group
    if engine.device.type == "cuda":
        return 1
    return max(calibrate(engine, cache_file()), 1 if trainer == "stacked" else 0)


def cache_file() -> Path | None:
    """Where calibrations are kept; None where there is no folder for such things."""
    folder = cache_folder()
    return None if folder is None else folder / "calibration.json"


def _measure(engine: Engine) -> int:
    ids = sorted(engine.rows, key=lambda c: -len(engine.rows[c]))
    params = engine.layout.flatten(engine.model.state_dict())
    saved = params.clone()
    few = {c: engine.rows[c][: CALIBRATION_STEPS * engine.training.batch_size] for c in ids}
    costs: dict[int, float] = {}
    for group in (0, *CANDIDATES):
        clients = [ids[i % len(ids)] for i in range(max(group, 1))]
        trial = Engine(engine.model, replace(engine.training, epochs=1), engine.seed, engine.x, engine.y, few, group)
        out = torch.empty(len(clients), engine.layout.d)
        times = []
        for _ in range(3):
            start = time.process_time()  # of this thread's work alone: a busy machine must not decide
            trial.train(params, 0, clients, out)
            times.append(time.process_time() - start)
        costs[group] = min(times[1:]) / len(clients)
    engine.model.load_state_dict(engine.layout.unflatten(saved))
    best = min(CANDIDATES, key=lambda g: costs[g])
    return best if costs[best] < STACKED_MARGIN * costs[0] else 0


def _fingerprint(engine: Engine) -> str:
    training = engine.training
    return json.dumps(
        [
            platform.node(), platform.processor(), os.cpu_count(), torch.__version__, str(engine.model),
            list(engine.x.shape[1:]), training.batch_size, training.optimizer,
        ]
    )  # fmt: skip


def _read(path: Path | None) -> dict[str, int]:
    try:
        found = {} if path is None else json.loads(path.read_text())
        return {str(k): int(v) for k, v in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):  # no file yet, or not one of ours: measure again
        return {}


def _write(path: Path | None, known: Mapping[str, int]) -> None:
    """Add to the file; a folder that cannot be written to only means measuring again."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        draft.write_text(json.dumps({**_read(path), **known}, indent=1))
        draft.replace(path)
    except OSError:
        return
