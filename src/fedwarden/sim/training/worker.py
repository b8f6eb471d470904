"""A worker process: builds the model, maps the data, and trains the groups that it is given."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.registry import adopt, component
from ..models import build_model
from .engine import Engine
from .optimizer import LocalTraining
from .scratch import views


@dataclass(frozen=True)
class Assignment:
    """One group of clients to train, and the rows of the result that are theirs."""

    round: int
    client_ids: list[str]
    slots: list[int]


def run_task(
    engine: Engine,
    params: Tensor,
    task: Assignment,
    out: Tensor,
    changed: Mapping[str, NDArray[np.int64]] | None = None,
) -> None:
    """Train one group and write its models into its rows of the result; ``changed`` are rows that differ in it."""
    models = torch.empty(len(task.slots), engine.layout.d, device=engine.device)
    engine.train(params.to(engine.device), task.round, task.client_ids, models, changed)
    for slot, model in zip(task.slots, models, strict=True):
        out[slot].copy_(model)


def main(job: Mapping[str, Any], scratch: int, lines: SimpleQueue[bytes], answers: TextIO) -> None:
    """Answer every line; the thread that reads them ends this process."""
    torch.set_num_threads(1)
    for module in job["imports"]:
        adopt(module)
    arrays = views(scratch, job["arrays"])
    flat, rows, start = arrays["rows"].numpy(), {}, 0
    for client, size in job["clients"].items():
        rows[client] = flat[start : start + size]
        start += size
    model, training = build_model(**job["model"], seed=0), LocalTraining(**job["training"])
    task = component("task", {key: value for key, value in job["task"].items() if key != "kind"})
    own = {client: LocalTraining(**how) for client, how in job["own"].items()}
    engine = Engine(model, training, job["seed"], arrays["x"], arrays["y"], rows, job["group"], task=task, own=own)
    print("ready", file=answers, flush=True)
    while True:
        run_task(engine, arrays["params"], Assignment(**json.loads(lines.get())), arrays["out"])
        print("done", file=answers, flush=True)
