"""Tables of studies: results selected, means with their spread over seeds, Markdown and CSV."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from scipy import stats

Result = Mapping[str, Any]
"""What a study keeps of one run."""

Grid = tuple[Sequence[str], Sequence[Sequence[str]]]
"""The header and the rows of a table."""


class Found(TypedDict):
    """One line of a study's file: what identifies a run, and what came of it."""

    cell: dict[str, Any]
    result: dict[str, Any]


Results = Sequence[Found]


def columns(names: str) -> list[str]:
    """The header of a table.

    >>> columns("rule | accuracy, late")
    ['rule', 'accuracy, late']
    """
    return names.split(" | ")


def interval(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds; of one seed, its value alone.

    >>> interval([0.9, 1.0, 1.0]), interval([0.9]), interval([0.9996, 0.9996])
    ('.967 ± .058', '.900', '1.000 ± .000')
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


def share(hits: int, runs: int) -> str:
    """How many of some runs, their share in percent and its 95 % interval (Clopper and Pearson, 1934); - for no run.

    Of none of 20 the interval ends at 1 - 0.025^(1/20).

    >>> share(0, 20), share(5, 20), share(0, 0)
    ('0: 0.0 % (0.0 to 16.8)', '5: 25.0 % (8.7 to 49.1)', '-')
    """
    if not runs:
        return "-"
    low, high = stats.binomtest(hits, runs).proportion_ci(0.95, "exact")
    return f"{hits}: {100 * hits / runs:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def confidence(values: Sequence[float]) -> str:
    """Mean and the half width of its 95 % interval, in points of 100; of one value, that value alone.

    >>> confidence([0.9, 1.0, 1.0]), confidence([0.9]), confidence([])
    ('96.7 ± 14.3', '90.0', '-')
    """
    if not len(values):
        return "-"
    mean, half = mean_interval(values)
    return f"{100 * mean:.1f} ± {100 * half:.1f}" if len(values) > 1 else f"{100 * mean:.1f}"


def select(results: Sequence[Result], where: Mapping[str, object]) -> list[Result]:
    """The results of the cells that have these values."""
    return [r["result"] for r in results if all(r["cell"].get(k) == v for k, v in where.items())]


def median_of(found: Sequence[Result], key: str) -> str:
    """The median over results of what some of them have.

    >>> median_of([{"last_catch": 4}, {"last_catch": None}, {"last_catch": 7}, {"last_catch": 5}], "last_catch")
    '5'
    """
    values = [r[key] for r in found if r[key] is not None]
    return f"{np.median(values):.0f}" if values else "-"


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

    def records(self) -> list[dict[str, str]]:
        """Each row by the names of the columns.

        >>> Sheet("alarms", "", (["source", "70-30"], [["loss", "0.50"]])).records()
        [{'source': 'loss', '70-30': '0.50'}]
        """
        return [dict(zip(self.grid[0], row, strict=True)) for row in self.grid[1]]


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


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"
