"""A study: many scenarios, run in parallel processes, each result kept as it comes, so that a study can be cut off."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import torch

from ..sim.federation import Federation, simulate
from ..sim.scenario import load_scenario
from .tables import Found, Result

Cell = Mapping[str, object]
"""What identifies one run of a study."""

Table = Mapping[str, Any]
"""A scenario as a table."""

LATE = 5  # rounds at the end of a run over which its late accuracy is averaged


def one(table: Table, on_start: Callable[[int, Federation], None] | None = None) -> Result:
    """Run one scenario in a workspace of its own and return its summary; ``on_start`` may change the federation."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="fedwarden-") as folder:
        result = simulate(load_scenario(table), Path(folder), on_start=on_start)
    last = result.records[-1].metrics
    late = [r.metrics["accuracy"] for r in result.records[-LATE:]]
    return {
        **result.summary,
        "late_accuracy": float(np.mean(late)),
        "clients_accuracy": last.get("clients_accuracy"),
        "notes": [note.table() for note in dict.fromkeys(n for r in result.records[:2] for n in r.notes)],
    }


def collect(
    name: str,
    cells: Sequence[tuple[Cell, Table]],
    folder: Path,
    processes: int,
    run: Callable[[Table], Result] | None = None,
) -> Iterator[int]:
    """Run the cells that have no result yet, yielding how many are done; results are lines of a JSON file.

    ``run`` makes a result of a cell's table; by default the table is a scenario, and the result its summary.
    """
    path = results_file(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {_key(r["cell"]) for r in results(folder, name)}
    todo = [(cell, table) for cell, table in cells if _key(cell) not in known]
    done = len(cells) - len(todo)
    yield done
    context = multiprocessing.get_context("spawn")
    if path.is_file() and not path.read_text().endswith("\n"):
        path.write_text("".join(json.dumps(r) + "\n" for r in results(folder, name)))
    _start_tracker()
    theirs, mine = context.Pipe(duplex=False)
    with (
        path.open("a") as file,
        TemporaryDirectory(prefix="fedwarden-") as scratch,
        ProcessPoolExecutor(processes, context, prepare, (theirs, scratch)) as pool,
        mine,  # closed first: where this is left early, the processes leave what they are at
    ):
        waiting = {pool.submit(run or one, table): cell for cell, table in todo}
        for future in as_completed(waiting):
            file.write(json.dumps({"cell": dict(waiting[future]), "result": future.result()}) + "\n")
            file.flush()
            done += 1
            yield done


def _start_tracker() -> None:
    """Start the process of ``multiprocessing`` that cleans up if this one is killed; without a warning that it did."""
    sys.warnoptions.append("ignore:resource_tracker:UserWarning")  # passed on to that process
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.pop()


def prepare(parent: Connection, scratch: str) -> None:
    """In a process of the study: end when the other end of the pipe is closed, as it is when the parent dies.

    Ctrl-C is for the parent, and so is removing the temporary files.
    """

    def watch() -> None:
        with suppress(EOFError, OSError):
            parent.recv_bytes()
        os._exit(1)

    tempfile.tempdir = scratch
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=watch, daemon=True).start()


def results(folder: Path, name: str, cells: Sequence[tuple[Cell, Table]] | None = None) -> list[Found]:
    """What a study has found so far, of these cells where some are given."""
    path = results_file(folder, name)
    found: list[Found] = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off while it was written: that cell is run again
            continue
    if cells is None:
        return found
    wanted = {_key(cell) for cell, _ in cells}
    return [r for r in found if _key(r["cell"]) in wanted]


def _key(cell: Cell) -> str:
    return json.dumps(dict(cell), sort_keys=True)


def results_file(folder: Path, name: str) -> Path:
    return folder / "studies" / f"{name}.jsonl"
