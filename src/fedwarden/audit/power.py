"""What a rank test of so many runs can find: the exact Mann-Whitney test, its smallest p-value, and its power.

A conclusion has three values. "does not show" is one only where the test could have found something; where no outcome
reaches the level, whatever the scores are, the conclusion is "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

import numpy as np

from ..core.separation import ranks
from ..core.stats import Scores

Says = Literal["shows", "does not show", "cannot tell"]
POWER = 0.8
EXACT = 60  # runs up to which sets of ranks are counted: some 10 ms


@dataclass(frozen=True)
class Reach:
    """What a test of so many runs can find at a level.

    ``least_p`` is the smallest p-value of any outcome, ``needed`` the number of runs of each kind from which on it
    reaches the level, ``auroc`` the smallest AUROC that is found with probability ``power``: None where nothing can be.
    """

    level: float
    least_p: float
    needed: int
    auroc: float | None
    power: float = POWER


def rank_p(shifted: Scores, null: Scores) -> float:
    """The exact p-value of the one-sided Mann-Whitney test, with or without ties.

        p = #{sets of s of the s + m pooled mid-ranks whose sum is at least that of the shifted} / (s + m choose s)

    Mann and Whitney (1947); with ties it is the permutation test of the mid-ranks. Beyond 60 runs the normal
    approximation with its corrections for ties and continuity, which is then never taken to be below ``least_p``.

    >>> rank_p(np.array([8.0, 9.0]), np.array([1.0, 2.0]))  # 1 of (4 choose 2) orders
    0.16666666666666666
    """
    s, m = len(shifted), len(null)
    if s + m > EXACT:
        test = import_module("scipy.stats").mannwhitneyu  # which takes half as long to import as torch
        return max(float(test(shifted, null, alternative="greater", method="asymptotic").pvalue), least_p(s, m))
    twice = np.rint(2 * ranks(np.concatenate([shifted, null]))).astype(np.int64)  # whole numbers
    sets = np.zeros((s + 1, int(twice.sum()) + 1))  # sets[k, r]: how many sets of k ranks sum to r
    sets[0, 0] = 1.0
    for rank in twice:
        sets[1:, rank:] += sets[:-1, : sets.shape[1] - rank].copy()
    return float(sets[s, int(twice[:s].sum()) :].sum() / math.comb(s + m, s))


def least_p(s: int, m: int) -> float:
    """The smallest p-value that s runs against m can have: all of the s lie above all of the m.

        1 / (s + m choose s)

    >>> least_p(3, 3), round(least_p(4, 4), 4)
    (0.05, 0.0143)
    """
    if s < 1 or m < 1:
        raise ValueError(f"a test needs runs of both kinds; got {s} and {m}")
    return 1 / math.comb(s + m, s)


def runs_needed(level: float) -> int:
    """The smallest number of runs of each kind with which a p-value can reach a level.

    >>> runs_needed(0.05), runs_needed(0.05 / 16)
    (3, 6)
    """
    if not 0 < level < 1:
        raise ValueError(f"a level lies in (0, 1); got {level}")
    n = 1
    while least_p(n, n) > level:
        n += 1
    return n


def wins(s: int, m: int, odds: float = 1.0) -> Scores:
    """How probable it is that u = 0 .. s m of the pairs have the shifted run above the null one.

    Of i shifted and j null runs the highest is a shifted one with probability odds i / (odds i + j), and is then above
    j others:

        P(u; i, j) = odds i / (odds i + j) P(u - j; i - 1, j) + j / (odds i + j) P(u; i, j - 1)

    Savage (1956), for the alternative of Lehmann (1953): a shifted score is distributed as the largest of ``odds`` null
    scores. The AUROC is then odds / (1 + odds); at odds 1 nothing is shifted.

    >>> wins(1, 2, odds=2.0).round(3).tolist()  # above both of two nulls with probability 2 / 4
    [0.167, 0.333, 0.5]
    """
    below = np.zeros((m + 1, s * m + 1))
    below[:, 0] = 1.0  # no shifted run is left
    for i in range(1, s + 1):
        now = np.zeros_like(below)
        now[0, 0] = 1.0
        for j in range(1, m + 1):
            up = odds * i / (odds * i + j)
            now[j] = (1 - up) * now[j - 1]
            now[j, j:] += up * below[j, : s * m + 1 - j]
        below = now
    return np.asarray(below[m], dtype=np.float64)


def smallest_auroc(s: int, m: int, level: float) -> float | None:
    """The smallest AUROC that the test finds with probability .8; None where no outcome reaches the level.

    Exact for scores without ties under Lehmann's alternative (see ``wins``), an approximation for others.

    >>> smallest_auroc(4, 4, 0.05 / 16), round(smallest_auroc(1, 1, 0.5), 3)
    (None, 0.8)
    """
    if least_p(s, m) > level:
        return None
    tail = np.cumsum(wins(s, m)[::-1])  # of the s m, s m - 1, ... highest
    far = int((tail <= level * (1 + 1e-9)).sum())

    def lacks(log_odds: float) -> float:
        return float(wins(s, m, math.exp(log_odds))[-far:].sum()) - POWER

    return 1 / (1 + math.exp(-import_module("scipy.optimize").brentq(lacks, 0.0, 30.0)))


def reach(s: int, m: int, tests: int, alpha: float = 0.05) -> Reach:
    """What s runs against m can find where the level is divided by a number of tests (Bonferroni).

    >>> reach(4, 4, tests=16).needed, round(reach(10, 10, tests=16).auroc, 2)
    (6, 0.91)
    """
    level = alpha / max(tests, 1)
    return Reach(level, least_p(s, m), runs_needed(level), smallest_auroc(s, m, level))


def says(p: float, least: float, level: float, low: float = 1.0) -> Says:
    """The conclusion of one test, from its p-value, the smallest one that it could have had, and the AUROC's lower end.

    It cannot tell where no outcome reaches the level, or where p does and the interval of the AUROC holds one half.

    >>> says(0.01, 0.001, 0.05), says(0.3, 0.001, 0.05), says(0.1, 0.1, 0.05)
    ('shows', 'does not show', 'cannot tell')
    """
    if least > level or (p <= level and low <= 0.5):
        return "cannot tell"
    return "shows" if p <= level else "does not show"


def every(found: Iterable[Says]) -> Says:
    """Whether all show: one that does not decides, else one that cannot tell.

    >>> every(["shows", "cannot tell"]), every(["cannot tell", "does not show"])
    ('cannot tell', 'does not show')
    """
    kinds = set(found)
    return "does not show" if "does not show" in kinds else "cannot tell" if "cannot tell" in kinds else "shows"


def some(found: Iterable[Says]) -> Says:
    """Whether any shows: one that does decides, else one that cannot tell; of none it cannot be told.

    >>> some(["shows", "cannot tell"]), some(["cannot tell", "does not show"]), some([])
    ('shows', 'cannot tell', 'cannot tell')
    """
    kinds = set(found)
    return "shows" if "shows" in kinds else "does not show" if kinds == {"does not show"} else "cannot tell"
