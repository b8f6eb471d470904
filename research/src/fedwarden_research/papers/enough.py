"""What so many seeds, or so few layers, can tell: no sentence on a claim rests on a test without power."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from scipy import stats

from fedwarden.audit.power import POWER, runs_needed, smallest_auroc

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
