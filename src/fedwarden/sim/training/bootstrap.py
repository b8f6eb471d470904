"""Starts a worker process: it watches its parent from the first moment on, then imports torch and trains.

Run by its path and not as a module of the package, because importing the package takes seconds.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from queue import SimpleQueue
from select import select
from threading import Thread

STDIN, STDOUT = 0, 1


def listen(parent: int, lines: SimpleQueue[bytes]) -> None:
    """Pass on what the parent writes; end this process, whatever it is doing, as soon as the parent is gone.

    Its end of the pipe closes when it dies. Where a process that it forked still holds that end, its number tells.
    """
    rest = b""
    while os.getppid() == parent:
        if not select([STDIN], [], [], 1.0)[0]:
            continue
        chunk = os.read(STDIN, 1 << 16)
        if not chunk:
            break
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            lines.put(line)
    os._exit(0)


def main(scratch: int, start: int, parent: int) -> None:
    """``scratch`` is the file that all workers map; the job is its text from byte ``start`` on."""
    lines: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=listen, args=(parent, lines), daemon=True).start()
    answers = os.fdopen(os.dup(STDOUT), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)  # what a model prints is no answer
    job = json.loads(os.pread(scratch, os.fstat(scratch).st_size - start, start))
    sys.path[:] = job["path"]
    import_module("fedwarden.sim.training.worker").main(job, scratch, lines, answers)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
