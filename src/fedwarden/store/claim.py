"""One writer a run: a lock that the system takes back from a process however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..core.errors import FedwardenError


class RunInUse(FedwardenError):
    """Another process writes the same run."""


@contextmanager
def claim(folder: Path, run: int) -> Iterator[None]:
    """Be the only process that writes this run of a workspace; the file names the process and stays."""
    path = folder / "locks" / str(run)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            who = file.read().strip() or "that is just starting"
            raise RunInUse(f"run {run} is being written by process {who}; wait for it, or end it first") from error
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
