"""Threads for compiled kernels, which release the interpreter: as many as torch would use, the calling one included."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import torch

HELPERS = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="fedwarden")  # a thread starts when it is first needed


def together(work: Callable[[], object], most: int) -> None:
    """Run the same work on several threads at once, at most ``most`` of them; the work shares itself out.

    What no helper has begun by the end has nothing left to do, so that nobody waits for a busy one.

    >>> left = [1, 2, 3, 4]
    >>> together(lambda: [left.pop() for _ in range(4) if left], most=2)
    >>> left
    []
    """
    helping = [HELPERS.submit(work) for _ in range(min(torch.get_num_threads(), most) - 1)]
    try:
        work()
    finally:
        for helper in helping:
            if not helper.cancel():
                helper.result()


@cache
def load_kernels(module: str, compiler: str = "numba") -> ModuleType | None:
    """A module of compiled kernels, imported on first use; None where their compiler is not installed."""
    return import_module(module) if find_spec(compiler) else None
