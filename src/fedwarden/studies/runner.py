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
from typing import Any, NamedTuple

import numpy as np
import torch

from ..sim.federation import Federation, simulate
from ..sim.federation import Result as RunResult
from ..sim.scenario import load_scenario
from .tables import Found, Result

Cell = Mapping[str, object]
"""What identifies one run of a study."""

Table = Mapping[str, Any]
"""A scenario as a table."""


class Job(NamedTuple):
    """One run: the study that keeps its result, what identifies it there, what is run, and by what.

    Without ``run`` the table is a scenario, and the result its summary.
    """

    study: str
    cell: Cell
    table: Table
    run: Callable[[Table], Result] | None = None


LATE = 5  # rounds at the end of a run over which its late accuracy is averaged


def played(table: Table, on_start: Callable[[int, Federation], None] | None = None) -> RunResult:
    """One scenario, run in a workspace of its own; ``on_start`` may change the federation."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="fedwarden-") as folder:
        return simulate(load_scenario(table), Path(folder), on_start=on_start)


def one(table: Table, on_start: Callable[[int, Federation], None] | None = None) -> Result:
    """The summary of one scenario; ``on_start`` may change the federation."""
    result = played(table, on_start)
    last = result.records[-1].metrics
    late = [r.metrics["accuracy"] for r in result.records[-LATE:]]
    return {
        **result.summary,
        "late_accuracy": float(np.mean(late)),
        "clients_accuracy": last.get("clients_accuracy"),
        "notes": [note.table() for note in dict.fromkeys(n for r in result.records[:2] for n in r.notes)],
    }


def work(jobs: Sequence[Job], folder: Path, processes: int) -> Iterator[int]:
    """Run the jobs of any number of studies that have no result yet, yielding how many are done; the same job once.

    Results are lines of a JSON file for each study.
    """
    jobs = unique(jobs)
    studies = list(dict.fromkeys(job.study for job in jobs))
    known = {(study, _key(r["cell"])) for study in studies for r in results(folder, study)}
    todo = [job for job in jobs if (job.study, _key(job.cell)) not in known]
    done = len(jobs) - len(todo)
    yield done
    for study in studies:
        _mend(folder, study)
    context = multiprocessing.get_context("spawn")
    _start_tracker()
    theirs, mine = context.Pipe(duplex=False)
    with (
        TemporaryDirectory(prefix="fedwarden-") as scratch,
        ProcessPoolExecutor(processes, context, prepare, (theirs, scratch)) as pool,
        mine,  # closed first: where this is left early, the processes leave what they are at
    ):
        waiting = {pool.submit(job.run or one, job.table): job for job in todo}
        for future in as_completed(waiting):
            job = waiting[future]
            line = json.dumps({"cell": dict(job.cell), "result": future.result()})
            with results_file(folder, job.study).open("a") as file:
                file.write(line + "\n")
            done += 1
            yield done


def unique(jobs: Sequence[Job]) -> list[Job]:
    """The jobs, each of those that several tables share once."""
    return list({(job.study, _key(job.cell)): job for job in jobs}.values())


def _mend(folder: Path, study: str) -> None:
    """Remove what a study that was cut off left half written."""
    path = results_file(folder, study)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and not path.read_text().endswith("\n"):
        path.write_text("".join(json.dumps(r) + "\n" for r in results(folder, study)))


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


def results(folder: Path, name: str) -> list[Found]:
    """What a study has found so far."""
    path = results_file(folder, name)
    found: list[Found] = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off while it was written: that cell is run again
            continue
    return found


def kept(folder: Path, jobs: Sequence[Job]) -> list[Found]:
    """The results that there are of some jobs."""
    wanted = {(job.study, _key(job.cell)) for job in jobs}
    studies = dict.fromkeys(job.study for job in jobs)
    return [r for study in studies for r in results(folder, study) if (study, _key(r["cell"])) in wanted]


def _key(cell: Cell) -> str:
    return json.dumps(dict(cell), sort_keys=True)


def results_file(folder: Path, name: str) -> Path:
    return folder / "studies" / f"{name}.jsonl"
