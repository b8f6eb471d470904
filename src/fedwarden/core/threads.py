"""Threads for compiled kernels, which release the interpreter: as many as torch would use, the calling one included."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from queue import SimpleQueue
from threading import Lock, Thread
from types import ModuleType

import torch


def together(work: Callable[[], object], most: int) -> None:
    """Run the same work on several threads at once, at most ``most`` of them; the work shares itself out.

    Passes over the updates take milliseconds, and a future of the standard pool costs a tenth of one.

    >>> left = [1, 2, 3, 4]
    >>> together(lambda: [left.pop() for _ in range(4) if left], most=2)
    >>> left
    []
    """
    tasks = [Task(work) for _ in range(min(torch.get_num_threads(), most) - 1)]
    for number, task in enumerate(tasks):
        _helper(number).put(task)
    try:
        work()
    finally:
        for task in tasks:
            task.end()


class Task:
    """Work for one helper, who claims it first; what nobody has claimed by the end has nothing left to do."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.work: Callable[[], object] | None = work
        self.claimed, self.running = Lock(), Lock()
        self.running.acquire()
        self.error: BaseException | None = None

    def run(self) -> None:
        if self.work is not None and self.claimed.acquire(blocking=False):
            try:
                self.work()
            except BaseException as error:  # raised by end() in the thread that asked for the work
                self.error = error
            finally:
                self.running.release()

    def end(self) -> None:
        """Claim the task back, or wait for the helper and raise what it ran into."""
        if self.claimed.acquire(blocking=False):
            self.work = None  # it may wait in a queue for long, and holds on to arrays
            return
        self.running.acquire()
        if self.error is not None:
            raise self.error


@cache
def load_kernels(module: str) -> ModuleType | None:
    """A module of compiled kernels, imported on first use; None where numba is not installed."""
    return import_module(module) if find_spec("numba") else None


@cache
def _helper(number: int) -> SimpleQueue[Task]:
    """The queue of a helper thread, which is started on first use and waits for work until the program ends."""
    queue: SimpleQueue[Task] = SimpleQueue()

    def serve() -> None:
        while True:
            queue.get().run()  # in no variable: a task holds on to the arrays of its work

    Thread(target=serve, name=f"fedwarden-{number}", daemon=True).start()
    return queue
