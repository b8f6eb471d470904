"""Tables of studies: means with their intervals over seeds, Markdown and CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def markdown(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
