"""Threads for compiled kernels, which release the interpreter: as many as torch would use, the calling one included."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch


def together(work: Callable[[], object], most: int) -> None:
    """Run the same work on several threads at once, at most ``most`` of them; the work shares itself out.

    >>> left = [1, 2, 3, 4]
    >>> together(lambda: [left.pop() for _ in range(4) if left], most=2)
    >>> left
    []
    """
    helpers = min(torch.get_num_threads(), most) - 1
    others = [_pool(helpers).submit(work) for _ in range(helpers)]
    try:
        work()
    finally:
        for other in others:
            other.cancel() or other.result()  # one that never started has nothing left to do


@cache
def load_kernels(module: str) -> ModuleType | None:
    """A module of compiled kernels, imported on first use; None where numba is not installed."""
    return import_module(module) if find_spec("numba") else None


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(workers, thread_name_prefix="fedwarden")
