"""One worker process per core, each with one torch thread; this process is one of them.

Workers are started as plain subprocesses that speak JSON lines; arrays travel through memory-mapped scratch files. A
worker that dies only makes the run slower: its clients are trained here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .engine import Engine, one_thread

SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Task:
    """One group of clients, the rows of the result that are theirs, and the data of those whose data changed."""

    round: int
    client_ids: list[str]
    slots: list[int]
    changed: dict[str, list[int]] = field(default_factory=dict)


class Pool:
    """Trains the clients of a round on all cores; close it, or use it as a context."""

    def __init__(self, engine: Engine, model: dict[str, Any] | None, workers: int, imports: Sequence[str] = ()) -> None:
        """``model`` describes how a worker builds the model; None, for a module of the user's own, uses none."""
        self.engine = engine
        self.processes: list[subprocess.Popen[str]] = []
        self.ready: set[int] = set()
        helpers = workers - 1 if model is not None and engine.device.type == "cpu" else 0
        self.feeders = ThreadPoolExecutor(max(helpers, 1), thread_name_prefix="fedwarden-feed")
        clients, d = len(engine.rows), engine.layout.d
        if helpers < 1:
            self.params, self.out = torch.empty(d), torch.empty(clients, d)
            return
        needed = 4 * (clients + 1) * d + engine.x.nbytes + engine.y.nbytes
        self.scratch = Path(tempfile.mkdtemp(prefix="fedwarden-", dir=_scratch_folder(needed)))
        rows = torch.from_numpy(np.concatenate([engine.rows[c] for c in engine.rows]))
        self.params = share(self.scratch / "params", (d,), torch.float32)
        self.out = share(self.scratch / "out", (clients, d), torch.float32)
        for name, tensor in (("x", engine.x), ("y", engine.y), ("rows", rows)):
            share(self.scratch / name, tuple(tensor.shape), tensor.dtype).copy_(tensor)
        job = {
            "model": model,
            "imports": list(imports),
            "training": asdict(engine.training),
            "seed": engine.seed,
            "group": engine.group,
            "shape": list(engine.x.shape),
            "dtype": str(engine.x.dtype).removeprefix("torch."),
            "d": d,
            "clients": {c: len(r) for c, r in engine.rows.items()},
        }
        (self.scratch / "job.json").write_text(json.dumps(job))
        command = [sys.executable, "-m", "fedwarden.sim.worker", str(self.scratch)]
        for _ in range(helpers):
            # a process group of its own: Ctrl-C is for this process, which then ends its workers
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment(), process_group=0
            )
            self.processes.append(process)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers that were started here and remove the scratch files."""
        for process in self.processes:
            if process.stdin:
                with suppress(OSError):  # a dead worker left what was written to it in the pipe
                    process.stdin.close()
        for process in self.processes:
            try:
                process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()
        self.processes = []
        self.feeders.shutdown()
        if scratch := getattr(self, "scratch", None):
            shutil.rmtree(scratch, ignore_errors=True)

    def train(
        self,
        params: Tensor,
        round: int,
        client_ids: Sequence[str],
        changed: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> Tensor:
        """The models of these clients after local training, one row each; valid until the next call.

        ``changed`` are the rows of clients that hold others in this round than at first.
        """
        self.params.copy_(params)
        tasks: SimpleQueue[Task] = SimpleQueue()
        for group in self.engine.groups(client_ids):
            mine = [client_ids[i] for i in group]
            tasks.put(Task(round, mine, group, {c: changed[c].tolist() for c in mine if changed and c in changed}))
        # first tasks are sent from here, as a thread gets the interpreter only milliseconds after this one is at work
        sent = [self._send(process, tasks) if process.pid in self.ready else None for process in self.processes]
        fed = [self.feeders.submit(self._feed, p, tasks, task) for p, task in zip(self.processes, sent, strict=True)]
        with one_thread():
            self._work(tasks)
            for feeding in fed:
                feeding.result()
            self._work(tasks)  # what a dying worker handed back
        return self.out[: len(client_ids)]

    def _work(self, tasks: SimpleQueue[Task]) -> None:
        while (task := _next(tasks)) is not None:
            run_task(self.engine, self.params, task, self.out)

    def _feed(self, process: subprocess.Popen[str], tasks: SimpleQueue[Task], task: Task | None) -> None:
        """Hand tasks to one worker until none is left; one that it does not finish goes back."""
        assert process.stdout is not None
        if process.pid not in self.ready:
            if process.stdout.readline().strip() != "ready":
                return
            self.ready.add(process.pid)
        while task is not None or (task := self._send(process, tasks)) is not None:
            try:
                done = process.stdout.readline().strip() == "done"
            except OSError:
                done = False
            if not done:
                tasks.put(task)
                return
            task = None

    def _send(self, process: subprocess.Popen[str], tasks: SimpleQueue[Task]) -> Task | None:
        """The next task, sent to a worker; None where there is none, or nobody to take it."""
        assert process.stdin is not None
        task = _next(tasks) if process.poll() is None else None
        if task is not None:
            with suppress(OSError):  # of a worker that died: no answer comes, and the task goes back
                print(json.dumps(asdict(task)), file=process.stdin, flush=True)
        return task


def run_task(engine: Engine, params: Tensor, task: Task, out: Tensor) -> None:
    """Train one group and write its models into its rows of the result."""
    models = torch.empty(len(task.slots), engine.layout.d, device=engine.device)
    changed = {client: np.array(rows, dtype=np.int64) for client, rows in task.changed.items()}
    engine.train(params.to(engine.device), task.round, task.client_ids, models, changed)
    for slot, model in zip(task.slots, models, strict=True):
        out[slot].copy_(model)


def share(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor over a file that other processes can map; created where it is not there."""
    return torch.from_file(str(path), shared=True, size=torch.Size(shape).numel(), dtype=dtype).reshape(shape)


def default_workers() -> int:
    """One process per core this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _next(tasks: SimpleQueue[Task]) -> Task | None:
    try:
        return tasks.get_nowait()
    except Empty:
        return None


def _scratch_folder(needed: int) -> str | None:
    usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return str(SHARED_MEMORY) if usable and shutil.disk_usage(SHARED_MEMORY).free > 2 * needed else None


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
