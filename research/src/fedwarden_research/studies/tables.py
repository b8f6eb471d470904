"""Tables of the papers and studies: results selected, means with their spread over seeds, sheets and CSV files."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from fedwarden.studies.tables import Grid as Grid
from fedwarden.studies.tables import Result as Result
from fedwarden.studies.tables import Results as Results
from fedwarden.studies.tables import columns as columns
from fedwarden.studies.tables import confidence as confidence
from fedwarden.studies.tables import markdown as markdown
from fedwarden.studies.tables import mean_interval as mean_interval


def read_csv(path: Path) -> Grid:
    """A table that was written as CSV."""
    with path.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def interval(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds; of one seed, its value alone.

    >>> interval([0.9, 1.0, 1.0]), interval([0.9]), interval([0.9996, 0.9996])
    ('.967 ± .058', '.900', '1.000 ± .000')
    """
    x = np.asarray(values, dtype=np.float64)
    mean = _short(float(x.mean()))
    return f"{mean} ± {_short(float(x.std(ddof=1)))}" if len(x) > 1 else mean


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


def _short(value: float) -> str:
    return f"{value:.3f}".replace("0.", ".", 1) if value < 1 else f"{value:.3f}"
