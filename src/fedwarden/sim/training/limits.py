"""What this machine can give: its cores, and the memory that is left."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from ...core.errors import ConfigError

GROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(asked: int | None, tasks: int | None = None) -> int:
    """As many processes as were asked for, at most one per core and one per task.

    >>> processes(10**5, tasks=1)
    1
    """
    return max(1, min(asked or cores(), cores(), *(() if tasks is None else (tasks,))))


def memory_left() -> int:
    """Bytes that this process may still take, as far as the system tells."""
    page = os.sysconf("SC_PAGE_SIZE")
    found = [page * os.sysconf("SC_PHYS_PAGES")]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found += [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            found.append(soft - page * int(Path("/proc/self/statm").read_text().split()[0]))
        found.append(int(GROUP_LIMIT.read_text()))
    except (OSError, ValueError):  # another system, or a control group without a limit ("max")
        pass
    return max(0, min(found))


def check_memory(needed: int, what: str, remedy: str) -> None:
    """Refuse what cannot fit, before the system ends some process to make room for it."""
    if needed > (left := memory_left()):
        raise ConfigError(f"{what} need {needed / 1e9:,.1f} GB of memory; {left / 1e9:,.1f} GB are free: {remedy}")
