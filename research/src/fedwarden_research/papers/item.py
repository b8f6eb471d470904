"""A table or figure of a paper: what the paper says, what is run for it, and what is made of the results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from scipy import stats

from fedwarden.audit.power import POWER, runs_needed, smallest_auroc
from fedwarden.core.errors import ConfigError, nearest
from fedwarden.core.stats import Scores
from fedwarden.studies.runner import Cell, Job, Table

from ..studies.tables import Result, Results, Sheet

Cells = Callable[[Sequence[int], str], list[tuple[Cell, Table]]]
"""All runs of an item for some seeds on a device; where a cell has "data", ``--data`` can choose it."""

Sheets = Mapping[str, Sheet]
"""The tables of an item by name, as made of results or as read back from CSV."""


def by_data(results: Results) -> dict[str, Results]:
    """The results on each data set that has any."""
    names = dict.fromkeys(str(r["cell"]["data"]) for r in results)
    return {name: [r for r in results if r["cell"]["data"] == name] for name in names}


def number(value: float) -> str:
    """A number as it stands in a CSV file.

    >>> number(0.123456), number(1287.23979)
    ('0.1235', '1287')
    """
    return f"{value:.4g}"


def summary(values: Sequence[float] | Scores) -> list[str]:
    """Mean and standard deviation over seeds; of one seed the deviation is 0."""
    return [number(float(np.mean(values))), number(float(np.std(values, ddof=1)) if len(values) > 1 else 0.0)]


def no_pictures(found: Results, folder: Path, stem: str) -> list[Path]:
    """What an item without pictures draws."""
    return []


@dataclass(frozen=True)
class Item:
    """A table, figure or section of a paper.

    ``says`` has the paper's own numbers by label, ``claim`` its statement in our words, ``chosen`` what it leaves open
    and was decided here. ``run`` makes the result of one cell; by default its table is a scenario and the result the
    summary of that. ``sheets`` puts the paper's values beside ours, ``holds`` says from those tables alone, in one
    sentence, whether the claim holds, and ``pictures`` draws into files whose names begin with the stem. Items with the
    same ``runs`` share results. ``rarely`` names data that run only where ``--data`` asks for them.
    """

    name: str
    title: str
    claim: str
    cells: Cells
    sheets: Callable[[Results], list[Sheet]]
    holds: Callable[[Sheets], str]
    cost: str
    says: Mapping[str, float | str] = field(default_factory=dict)
    chosen: tuple[str, ...] = ()
    run: Callable[[Table], Result] | None = None
    pictures: Callable[[Results, Path, str], list[Path]] = no_pictures
    runs: str = ""
    seeds: int = 3
    device: str = "cpu"
    rarely: tuple[str, ...] = ()

    def data(self) -> tuple[str, ...]:
        """What ``--data`` may name."""
        return tuple(dict.fromkeys(str(cell["data"]) for cell, _ in self.cells([0], "cpu") if "data" in cell))


@dataclass(frozen=True)
class Paper:
    """A paper by its short name: where it is to be read, what the page about it begins with, and its items."""

    name: str
    title: str
    source: str
    items: tuple[Item, ...]
    words: str = ""

    def item(self, name: str) -> Item:
        known = {item.name: item for item in self.items}
        if name not in known:
            raise ConfigError(f"the paper {self.name} has no item {name!r} here; {nearest(name, known)}")
        return known[name]

    def jobs(self, item: Item, seeds: int, device: str) -> list[Job]:
        """All runs of an item, each with the name under which its result is kept."""
        stem = item.runs or f"{self.name}-{item.name}"
        return [
            Job(f"{stem}-{cell['data']}" if "data" in cell else stem, cell, table, item.run)
            for cell, table in item.cells(range(seeds), device)
        ]


def wanted(item: Item, jobs: Sequence[Job], data: Sequence[str]) -> list[Job]:
    """The runs on the data that were asked for; on all but those run rarely where nothing was."""
    known = {str(job.cell["data"]) for job in jobs if "data" in job.cell}
    for name in data:
        if not known:
            raise ConfigError(f"--data chooses among several data sets; {item.name} has its own")
        if name not in known:
            raise ConfigError(f"{item.name} has no data {name!r}; {nearest(name, known)}")
    chosen = set(data) or known - set(item.rarely)
    return [job for job in jobs if not known or job.cell["data"] in chosen]


LEVEL = 0.05
ENOUGH = runs_needed(LEVEL)  # seeds from which on a rank test of two groups can reach the level


def fewest(rows: Sequence[Mapping[str, str]]) -> int:
    return min((int(row["seeds"]) for row in rows), default=0)


def too_few(rows: Sequence[Mapping[str, str]]) -> str | None:
    """What is said in place of a verdict where the seeds cannot give one."""
    least = fewest(rows)
    return f"Cannot tell: {least} of the {ENOUGH} seeds that a test needs." if least < ENOUGH else None


def found_from(rows: Sequence[Mapping[str, str]]) -> str:
    """How large a difference the tests of a table find; it follows every sentence that says what they did not find.

    >>> found_from([{"seeds": "3"}])  # all of 3 above all of 3: odds i / (odds i + 3) for i = 1, 2, 3
    'With 3 seeds a test finds an AUROC of 0.96 or more with probability 0.8.'
    """
    least = fewest(rows)
    return (
        f"With {least} seeds a test finds an AUROC of {smallest_auroc(least, least, LEVEL):.2f} or more with "
        f"probability {POWER:g}."
    )


def order_of(values: Sequence[float]) -> tuple[float, float]:
    """Spearman's rank correlation of values with their place, and its two-sided p-value.

    The p-value is that of Student's approximation, but at least 2 / n!, the smallest of any order of n values: the
    approximation gives 0 for three values in a row.

    >>> order_of([1.0, 2.0, 5.0])
    (1.0, 0.3333333333333333)
    """
    rho, p = stats.spearmanr(range(len(values)), values)
    return float(rho), max(float(p), 2 / math.factorial(len(values)))
