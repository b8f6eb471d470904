"""A worker process builds the model, maps the data, and trains groups; and the memory that it shares with its pool.

That memory is a file without a name, gone with the last process that has it open.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TextIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.errors import FedwardenError
from ...core.registry import adopt, component
from ..models import build_model
from .engine import Engine
from .optimizer import LocalTraining

SHARED_MEMORY = Path("/dev/shm")
ALIGNMENT = 64  # bytes, of a cache line


Kind = tuple[tuple[int, ...], torch.dtype]
"""The shape and the type of an array."""


def create(arrays: Mapping[str, Kind], job: Mapping[str, Any]) -> tuple[BinaryIO, int, dict[str, Tensor]]:
    """A file with room for these arrays, and behind them the job as JSON; where the job starts; and the arrays."""
    places: dict[str, tuple[int, tuple[int, ...], str]] = {}
    end = 0
    for name, (shape, dtype) in arrays.items():
        places[name] = (end, shape, str(dtype).removeprefix("torch."))
        end += -(-prod(shape) * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    text = json.dumps({**job, "arrays": places}).encode()
    folder = _folder(end + len(text))
    file: BinaryIO = TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
    try:
        _reserve(file.fileno(), end)
        os.pwrite(file.fileno(), text, end)
    except OSError as error:
        file.close()
        where = f"{folder or 'the folder of temporary files'} has no room for {end / 1e6:,.1f} MB"
        raise FedwardenError(
            f"{where} that workers share ({error.strerror}); make room there, or set train.workers = 1"
        ) from error
    return file, end, views(file.fileno(), places)


def views(file: int, places: Mapping[str, Any]) -> dict[str, Tensor]:
    """The arrays of a file as tensors, the same memory in every process."""
    memory = mmap.mmap(file, 0)
    return {
        name: torch.frombuffer(memory, dtype=getattr(torch, dtype), count=prod(shape), offset=start).reshape(shape)
        for name, (start, shape, dtype) in places.items()
    }


def _folder(needed: int) -> str | None:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return str(SHARED_MEMORY) if usable and shutil.disk_usage(SHARED_MEMORY).free > 2 * needed else None


def _reserve(file: int, size: int) -> None:
    """Take the room now: writing to a mapped file on a full disk ends the process."""
    try:
        os.posix_fallocate(file, 0, size)
    except AttributeError:  # macOS
        os.ftruncate(file, size)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of file systems that cannot
            raise
        os.ftruncate(file, size)


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
