"""One worker process per core, each with one torch thread; this process is one of them.

Workers are started as plain subprocesses that speak JSON lines; arrays travel through memory that all of them share. A
worker that dies, stops or falls silent only makes the run slower: its clients are trained by another, to the same bits,
and in the next round a new worker takes its place. Workers leave when this process does, however it ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import wait
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.registry import describe
from . import bootstrap
from .engine import Engine, one_thread
from .limits import check_memory
from .worker import Assignment, Kind, create, run_task

PATIENCE = 60.0  # seconds
SLOWER = 10.0  # a worker may take this many times as long as the slowest group so far, besides
STARTING = 120.0  # seconds that a worker may take to start, besides
FRUITLESS = 3  # a worker that died this often in a row without finishing a task is not started again


@dataclass(eq=False)
class Worker:
    """A worker process; ``since`` it owes an answer."""

    process: subprocess.Popen[bytes]
    fruitless: int = 0
    ready: bool = False
    since: float = field(default_factory=monotonic)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def give(self, task: Assignment) -> None:
        """Send a task; a worker whose pipe does not take all of it at once is given up."""
        assert self.process.stdin is not None
        self.since, line = monotonic(), json.dumps(asdict(task)).encode() + b"\n"
        try:
            taken = self.process.stdin.write(line)
        except OSError:  # it died: no answer comes
            return
        if taken != len(line):
            self.process.kill()

    def hear(self, seconds: float) -> bytes | None:
        """Its next line, empty where none will come, or None where it is silent for so long."""
        assert self.process.stdout is not None
        return self.process.stdout.readline() if wait([self.process.stdout.fileno()], seconds) else None

    def end(self) -> None:
        """Kill it, and wait until it is gone: from then on it writes to no result. It has nothing to lose."""
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Pool:
    """Trains the clients of a round on all cores; close it, or use it as a context."""

    def __init__(
        self,
        engine: Engine,
        model: dict[str, Any] | None,
        workers: int,
        imports: Sequence[str] = (),
        most: int | None = None,
        patience: float = PATIENCE,
    ) -> None:
        """``model`` describes how a worker builds the model; None, for a module of the user's own, uses none.

        ``most`` clients are trained at a time, by default all. A worker is given up when it is silent for ``patience``
        seconds and ten times as long as the slowest group took so far.
        """
        self.engine, self.patience = engine, patience
        self.workers: list[Worker] = []
        self.longest = 0.0
        self.since: float | None = None  # since when this process trains a group
        self.scratch: BinaryIO | None = None
        helpers = workers - 1 if model is not None and engine.device.type == "cpu" else 0
        self.feeders = ThreadPoolExecutor(max(helpers, 1), thread_name_prefix="fedwarden-feed")
        clients, d = most or len(engine.rows), engine.layout.d
        check_memory(
            4 * (clients + 1) * d,
            f"{clients} models of {d:,} parameters, trained in one round,",
            "lower data.clients, train.participation or the size of the model",
        )
        if helpers < 1:
            self.params, self.out = torch.empty(d), torch.empty(clients, d)
            return
        self.first = torch.from_numpy(np.concatenate([engine.rows[c] for c in engine.rows]))
        given = {"x": engine.x, "y": engine.y, "rows": self.first}
        arrays: dict[str, Kind] = {"params": ((d,), torch.float32), "out": ((clients, d), torch.float32)}
        job = {
            "path": [os.path.abspath(folder) for folder in sys.path],
            "model": model,
            "task": describe(engine.task),
            "imports": list(imports),
            "training": asdict(engine.training),
            "own": {client: asdict(training) for client, training in engine.own.items()},
            "seed": engine.seed,
            "group": engine.group,
            "clients": {c: len(r) for c, r in engine.rows.items()},
        }
        arrays |= {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in given.items()}
        self.scratch, self.job, shared = create(arrays, job)
        for name, tensor in given.items():
            shared[name].copy_(tensor)
        self.params, self.out, self.rows = shared["params"], shared["out"], shared["rows"]
        with suppress(OSError):  # a machine that allows no more processes: fewer workers
            for _ in range(helpers):
                self.workers.append(self._start())

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers that were started here and give their memory back."""
        for worker in self.workers:
            worker.process.kill()
        self.feeders.shutdown()
        for worker in self.workers:
            worker.end()
        self.workers = []
        if self.scratch is not None:
            self.scratch.close()

    def train(
        self,
        params: Tensor,
        round: int,
        client_ids: Sequence[str],
        changed: Mapping[str, NDArray[np.int64]] | None = None,
    ) -> Tensor:
        """The models of these clients after local training, one row each; valid until the next call.

        ``changed`` are the rows of clients that hold others in this round than at first, as many of them.
        """
        self.params.copy_(params)
        tasks: SimpleQueue[Assignment] = SimpleQueue()
        for group in self.engine.groups(client_ids):
            tasks.put(Assignment(round, [client_ids[i] for i in group], group))
        self._replace()
        if self.workers:
            own = self.rows.copy_(self.first).split([len(rows) for rows in self.engine.rows.values()])
            for rows, client in zip(own, self.engine.rows, strict=True):
                if changed and client in changed:
                    rows.copy_(torch.from_numpy(changed[client]))
        workers = [worker for worker in self.workers if worker.alive]
        # first tasks are sent from here, as a thread gets the interpreter only milliseconds after this one is at work
        sent = [self._send(worker, tasks) for worker in workers]
        fed = [self.feeders.submit(self._feed, w, tasks, task) for w, task in zip(workers, sent, strict=True)]
        with one_thread():
            self._work(tasks, changed)
            for feeding in fed:
                feeding.result()
            self._work(tasks, changed)  # what was taken from a worker
        return self.out[: len(client_ids)]

    def _start(self, fruitless: int = 0) -> Worker:
        assert self.scratch is not None
        file = self.scratch.fileno()
        command = [sys.executable, "-P", bootstrap.__file__, *map(str, (file, self.job, os.getpid()))]
        # a process group of its own: Ctrl-C is for this process, which then ends its workers
        process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}, pass_fds=[file], process_group=0,
        )  # fmt: skip
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return Worker(process, fruitless)

    def _replace(self) -> None:
        """Start a worker for each that is gone."""
        for i, worker in enumerate(self.workers):
            if not worker.alive and worker.fruitless < FRUITLESS:
                worker.end()
                with suppress(OSError):  # tried again in the next round
                    self.workers[i] = self._start(worker.fruitless + 1)

    def _work(self, tasks: SimpleQueue[Assignment], changed: Mapping[str, NDArray[np.int64]] | None) -> None:
        while (task := _next(tasks)) is not None:
            self.since = began = monotonic()
            run_task(self.engine, self.params, task, self.out, changed)
            self.since, self.longest = None, max(self.longest, monotonic() - began)

    def _feed(self, worker: Worker, tasks: SimpleQueue[Assignment], task: Assignment | None) -> None:
        """Hand tasks to one worker until none is left; one that it does not finish goes back."""
        if not worker.ready:
            self._await(worker, tasks)
        while task is not None or (task := self._send(worker, tasks)) is not None:
            while (answer := worker.hear(0.2)) is None and monotonic() - worker.since < self._limit():
                pass
            if answer != b"done\n":
                worker.end()
                tasks.put(task)
                return
            self.longest, worker.fruitless = max(self.longest, monotonic() - worker.since), 0
            task = None

    def _await(self, worker: Worker, tasks: SimpleQueue[Assignment]) -> None:
        """Wait for a worker to start for as long as there is something to do for it: no round waits for that alone."""
        answer, late = None, False
        while answer is None and not late:
            if tasks.empty():
                return
            answer, late = worker.hear(0.05), monotonic() - worker.since > STARTING + self._limit()
        worker.ready = answer == b"ready\n"
        if not worker.ready:
            worker.end()

    def _send(self, worker: Worker, tasks: SimpleQueue[Assignment]) -> Assignment | None:
        """The next task, sent to a worker; None where there is none, or nobody to take it."""
        task = _next(tasks) if worker.ready and worker.alive else None
        if task is not None:
            worker.give(task)
        return task

    def _limit(self) -> float:
        """Seconds that a worker may take for a task; a group that this process is still at counts, too."""
        here = 0.0 if (since := self.since) is None else monotonic() - since
        return self.patience + SLOWER * max(self.longest, here)


def _next(tasks: SimpleQueue[Assignment]) -> Assignment | None:
    try:
        return tasks.get_nowait()
    except Empty:
        return None
