"""Threads for compiled kernels, which release the interpreter: as many as torch would use, the calling one included."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from threading import Lock
from types import ModuleType
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def in_order(task: Callable[[T], R], tasks: Iterable[T], use: Callable[[R], object]) -> None:
    """Run the tasks on threads, and use their results one at a time and in the order of the tasks.

    So that what is made of the results does not depend on the number of threads.

    >>> found = []
    >>> in_order(lambda x: x * x, range(5), found.append)
    >>> found
    [0, 1, 4, 9, 16]
    """
    workers, left = torch.get_num_threads(), iter(tasks)
    first = list(islice(left, workers))  # a thread that finds no task would still have to be woken
    numbered, lock, waiting, used = enumerate(chain(first, left)), Lock(), dict[int, R](), 0

    def work() -> None:
        nonlocal used
        while True:
            with lock:
                taken = next(numbered, None)
            if taken is None:
                return
            result = task(taken[1])
            with lock:
                waiting[taken[0]] = result
                while used in waiting:
                    use(waiting.pop(used))
                    used += 1

    others = [_pool(workers - 1).submit(work) for _ in first[1:]]
    work()  # waking another thread costs as much as a short task
    for other in others:
        other.result()


@cache
def load_kernels(module: str) -> ModuleType | None:
    """A module of compiled kernels, imported on first use; None where numba is not installed."""
    return import_module(module) if find_spec("numba") else None


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="fedwarden")
