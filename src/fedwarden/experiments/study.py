"""A study: many scenarios, run in parallel processes, each result kept as it comes, so that a study can be cut off."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np
import torch
from scipy import stats

from ..sim.federation import Federation, simulate
from ..sim.scenario import load_scenario

Cell = Mapping[str, Any]
"""What identifies one run of a study."""

Table = Mapping[str, Any]
"""A scenario as a table."""

Grid = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The header and the rows of a table."""

LATE = 5  # rounds at the end of a run over which its late accuracy is averaged


def one(table: Table, on_start: Callable[[int, Federation], None] | None = None) -> dict[str, Any]:
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
        "notes": _warnings(result.records),
    }


def collect(
    name: str,
    cells: Sequence[tuple[Cell, Table]],
    folder: Path,
    processes: int,
    run: Callable[[Table], dict[str, Any]] | None = None,
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


def results(folder: Path, name: str, cells: Sequence[tuple[Cell, Table]] | None = None) -> list[dict[str, Any]]:
    """What a study has found so far, of these cells where some are given."""
    path = results_file(folder, name)
    found = []
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


def interval(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds; of one seed, its value alone.

    >>> interval([0.9, 1.0, 1.0]), interval([0.9])
    ('.967 ± .058', '.900')
    """
    x = np.asarray(values, dtype=np.float64)
    mean = _short(float(x.mean()))
    return f"{mean} ± {_short(float(x.std(ddof=1)))}" if len(x) > 1 else mean


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and the half width of its 95 % Student interval; 0 for one value.

    >>> mean_interval([1.0, 1.0]), mean_interval([2.0])
    ((1.0, 0.0), (2.0, 0.0))
    """
    x = np.asarray(values, dtype=np.float64)
    half = stats.t.ppf(0.975, len(x) - 1) * x.std(ddof=1) / np.sqrt(len(x)) if len(x) > 1 else 0.0
    return float(x.mean()), float(half)


def confidence(values: Sequence[float]) -> str:
    """Mean and the half width of its 95 % interval, in points of 100; of one value, that value alone.

    >>> confidence([0.9, 1.0, 1.0]), confidence([0.9]), confidence([])
    ('96.7 ± 14.3', '90.0', '-')
    """
    if not len(values):
        return "-"
    mean, half = mean_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}" if len(values) > 1 else f"{100 * mean:.1f}"


def select(results: Sequence[Mapping[str, Any]], where: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The results of the cells that have these values."""
    return [r["result"] for r in results if all(r["cell"].get(k) == v for k, v in where.items())]


@dataclass(frozen=True)
class Sheet:
    """One of a study's tables; the name is the last part of its file's.

    >>> print(Sheet("alarms", "Share of seeds with an alarm", (["source", "70-30"], [["loss", "0.50"]])))
    #### Share of seeds with an alarm
    <BLANKLINE>
    | source | 70-30 |
    | --- | --- |
    | loss | 0.50 |
    """

    name: str
    title: str
    grid: Grid

    def __str__(self) -> str:
        return f"#### {self.title}\n\n{markdown(*self.grid)}"


def write_csv(path: Path, grid: Grid) -> Path:
    """Write a table as CSV, its cells as they are printed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([grid[0], *grid[1]])
    return path


def read_csv(path: Path) -> Grid:
    """A table that was written as CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"


def _warnings(records: Sequence[Any]) -> list[str]:
    return sorted({note.split(";")[0] for record in records[:2] for note in record.notes})
