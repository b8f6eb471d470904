"""Does a source see the shift, or only that something is new? Scores of shifted runs against those of each null.

A null is a run without the shift: nothing changes ("no change"), as many samples are replaced by fresh ones of the
same distribution ("fresh swap"), or only part of them ("partial swap"). Scores are one per seed, higher = more
departure; a source that may move both ways is scored by its size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..core.separation import auroc, aurocs, tpr_at
from ..core.stats import Scores
from ..core.types import Observation
from .power import Says, every, least_p, rank_p, says

BY_CLASS = ("mean_logits", "mean_softmax")  # answers by class: a vector, measured in units of its past changes


@dataclass(frozen=True)
class Leakage:
    """A source against one null: AUROC with its interval, its p-value, and the share of shifts found at few alarms.

    ``least_p`` is the smallest p-value that so many runs can have.
    """

    auroc: float
    low: float
    high: float
    p: float
    tpr: float
    least_p: float


@dataclass(frozen=True)
class Sight:
    """What a source sees: whether it shows the shift itself, and whether it shows that something is new."""

    shift: Says
    new: Says


def magnitude(observation: Observation) -> float:
    """How far an observation lies from what was expected, either way.

        |value - expected| / |expected|,   and of answers by class the score, in deviations of their past changes

    Brunner and Montuoro, arXiv 2409.13875, for the relative one.

    >>> magnitude(Observation(11, "weights", "cosine", "", 0.25, 0.5, -3.0, 0.1, False))
    0.5
    """
    return observation.score if observation.metric in BY_CLASS else abs(observation.relative)


def interval(shifted: Scores, null: Scores, rng: np.random.Generator, draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval of the AUROC at 95 %: seeds are drawn again with replacement, percentiles of the result.

    Where both have as many runs they are pairs of one seed and drawn together, else each by itself. Perfectly separated
    scores give (1, 1) from any number of seeds: look at the p-value as well.

    >>> interval(np.array([2.0, 3.0]), np.array([0.0, 1.0]), np.random.default_rng(0))
    (1.0, 1.0)
    """
    mine = rng.integers(len(shifted), size=(draws, len(shifted)))
    theirs = mine if len(null) == len(shifted) else rng.integers(len(null), size=(draws, len(null)))
    low, high = np.quantile(aurocs(shifted[mine], null[theirs]), [0.025, 0.975])
    return float(low), float(high)


def leakage(
    shifted: Scores, nulls: Mapping[str, Scores], rng: np.random.Generator, rate: float = 0.05
) -> dict[str, Leakage]:
    """The verdict on a source against each null; p is that of the exact one-sided Mann-Whitney test.

    >>> found = leakage(np.arange(5.0) + 9, {"no change": np.arange(5.0)}, np.random.default_rng(0))["no change"]
    >>> found.auroc, found.tpr, round(found.p, 4)  # 1 / (10 choose 5)
    (1.0, 1.0, 0.004)
    """
    out = {}
    for name, null in nulls.items():
        if not len(shifted) or not len(null) or not np.isfinite(np.concatenate([shifted, null])).all():
            raise ValueError(f"a verdict needs finite scores; got {shifted} and, of the null {name!r}, {null}")
        low, high = interval(shifted, null, rng)
        p, least = rank_p(shifted, null), least_p(len(shifted), len(null))
        out[name] = Leakage(auroc(shifted, null), low, high, p, tpr_at(shifted, null, rate), least)
    return out


def sees(verdicts: Mapping[str, Leakage], still: str = "no change", alpha: float = 0.05) -> Sight:
    """What a source sees at a level.

    Something new shows where it tells shifted runs from those without any change, and the shift itself where it tells
    them from every null. Telling takes p at most alpha and an interval above one half; where so few runs cannot reach
    alpha, it cannot tell.

    >>> sure, unsure = Leakage(0.9, 0.7, 1.0, 0.01, 0.8, 1e-5), Leakage(0.6, 0.3, 0.9, 0.2, 0.1, 1e-5)
    >>> sees({"no change": sure, "fresh swap": unsure})
    Sight(shift='does not show', new='shows')
    """
    if still not in verdicts:
        raise ValueError(f"what a source sees needs the null {still!r}; got {', '.join(verdicts) or 'none'}")
    told = {name: says(v.p, v.least_p, alpha, v.low) for name, v in verdicts.items()}
    return Sight(every(told.values()), told[still])
