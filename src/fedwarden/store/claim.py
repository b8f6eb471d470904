"""One writer a run: a lock that the system takes back from a process however it ends."""

from __future__ import annotations

import fcntl
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from ..core.errors import FedwardenError

LOOK = 0.2  # seconds to wait for a reader that looks whether a run has a writer, which takes microseconds
SILENT = 3600.0  # seconds without a commit after which a writer that cannot be looked for counts as gone
BOOT = Path("/proc/sys/kernel/random/boot_id")  # the same in all containers of a machine


@contextmanager
def claim(folder: Path, run: int) -> Iterator[None]:
    """Be the only process that writes this run of a workspace; the file names the process and stays."""
    path = _lock(folder, run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        patience = time.monotonic() + LOOK
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > patience:
                    file.seek(0)
                    who = next(iter(file.read().split()), "that is just starting")
                    words = f"run {run} is being written by process {who}; wait for it, or end it first"
                    raise FedwardenError(words) from error
                time.sleep(LOOK / 10)
        file.truncate(0)
        file.write(f"{os.getpid()} {' '.join(_machine())}\n")
        file.flush()
        yield


def is_abandoned(folder: Path, run: int, committed: float | None) -> bool:
    """Whether no process writes a run that the ledger has as running; ``committed`` is the time of its last round.

    The lock tells it of a writer on this machine. Of any other, an hour without a round does.
    """
    here = False
    with suppress(OSError):
        here = not _machine().isdisjoint(_lock(folder, run).read_text().split())
    return not is_claimed(folder, run) and (here or (committed is not None and time.time() - committed > SILENT))


def is_claimed(folder: Path, run: int) -> bool:
    """Whether a process on this machine writes a run; nothing is written to find out."""
    with suppress(OSError), _lock(folder, run).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _lock(folder: Path, run: int) -> Path:
    return folder / "locks" / str(run)


@cache
def _machine() -> frozenset[str]:
    """What names this machine: the host and, on Linux, its boot."""
    return frozenset([platform.node(), BOOT.read_text().strip() if BOOT.exists() else ""])
