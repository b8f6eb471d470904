"""What the benchmarks share: tables as Markdown, bars, the fastest read there is, and a line about the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter, sleep
from typing import Any

import numpy as np
import torch

PAUSE = 0.02  # seconds: torch's threads spin after an operation and would take a core from whatever is timed next


def seconds(work: Callable[[], Any]) -> float:
    """Wall-clock time of one call after a short rest, as of a server that has waited for its clients."""
    sleep(PAUSE)
    start = perf_counter()
    work()
    return perf_counter() - start


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the smallest and largest value in brackets."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def verdict(met: bool) -> str:
    return "met" if met else "**MISSED**"


def at_most(value: float, bar: float | None, unit: str = "") -> str:
    """The bar beside a figure that should not exceed it; a dash where there is none."""
    return "-" if bar is None else f"at most {bar:g}{unit}: {verdict(value <= bar)}"


def at_least(value: float, bar: float | None, unit: str = "") -> str:
    """The bar beside a figure that should reach it; a dash where there is none."""
    return "-" if bar is None else f"at least {bar:g}{unit}: {verdict(value >= bar)}"


def reads(rows: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Ways to read every number once and add them up; which one is the fastest hangs on the machine."""
    ones, ways = torch.ones(1, len(rows)), {"torch.sum(dim=0)": lambda: rows.sum(dim=0)}
    ways["ones @ x"] = lambda: ones @ rows
    try:
        from numba import njit, prange, set_num_threads
    except ImportError:
        return ways

    @njit(parallel=True, fastmath=True)
    def total(x: Any, out: Any, width: int) -> None:
        for block in prange((x.shape[1] + width - 1) // width):
            part = out[block * width : (block + 1) * width]
            part[:] = 0
            for i in range(x.shape[0]):
                part += x[i, block * width : (block + 1) * width]

    out, array = np.empty(rows.shape[1], np.float32), rows.numpy()

    def compiled() -> Any:
        set_num_threads(torch.get_num_threads())
        total(array, out, 4096)
        return out

    return {**ways, "compiled sum": compiled}


def fastest_read(rows: torch.Tensor, turns: int = 5) -> tuple[str, Callable[[], Any]]:
    """The floor of whatever reads all rows: its name and the call, by the best of some turns."""
    ways = reads(rows)
    for way in ways.values():
        way()  # compiles
    best = {name: min(seconds(way) for _ in range(turns)) for name, way in ways.items()}
    name = min(best, key=best.__getitem__)
    return name, ways[name]


def show(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
    """A Markdown table on standard output, with a heading and a remark below it."""
    print(f"### {title}\n")
    for line in (header, ["---"] * len(header), *rows):
        print("| " + " | ".join(str(cell) for cell in line) + " |")
    print(f"\n{note}\n" if note else "", flush=True)


def say(message: str) -> None:
    """Progress, on standard error."""
    print(message, file=sys.stderr, flush=True)


def machine() -> str:
    """The machine in one line: figures are worth little without it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    load = f", load {os.getloadavg()[0]:.1f} at the start" if hasattr(os, "getloadavg") else ""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}, NumPy {np.__version__}"
    return f"{name}, {os.cpu_count()} cores{load}; {versions}"
