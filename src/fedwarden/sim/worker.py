"""A worker process: builds the model, maps the data, and trains the groups it is given on standard input."""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from pathlib import Path
from shutil import rmtree

import torch

from .engine import Engine
from .models import build_model
from .pool import Task, run_task, share
from .trainer import LocalTraining


def main(scratch: Path) -> None:
    torch.set_num_threads(1)
    job = json.loads((scratch / "job.json").read_text())
    for module in job["imports"]:
        import_module(module)
    shape, clients, d = tuple(job["shape"]), job["clients"], job["d"]
    flat = share(scratch / "rows", (sum(clients.values()),), torch.int64).numpy()
    rows, start = {}, 0
    for client, size in clients.items():
        rows[client] = flat[start : start + size]
        start += size
    engine = Engine(
        build_model(**job["model"], seed=0),
        LocalTraining(**job["training"]),
        job["seed"],
        share(scratch / "x", shape, getattr(torch, job["dtype"])),
        share(scratch / "y", shape[:1], torch.int64),
        rows,
        job["group"],
    )
    params = share(scratch / "params", (d,), torch.float32)
    out = share(scratch / "out", (len(clients), d), torch.float32)
    try:
        print("ready", flush=True)
        for line in sys.stdin:
            run_task(engine, params, Task(**json.loads(line)), out)
            print("done", flush=True)
    except BrokenPipeError:  # nobody is left to be told
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        rmtree(scratch, ignore_errors=True)  # the run has ended, or was killed and could not clean up itself


if __name__ == "__main__":
    main(Path(sys.argv[1]))
