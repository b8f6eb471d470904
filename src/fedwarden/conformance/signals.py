"""The laws of a signal: a cohort in, one score per client out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..core.stats import Counts, Mask, Scores
from ..core.types import Cohort, Reading
from ..updates.updates import Updates
from .component import PARAMETERS, Component, equipped, with_model
from .law import Array, Broken, laws, require, same

N = 12
Measure = Callable[..., Scores]


def subject(component: Component) -> Measure:
    """Rows -> scores; a signal that needs a server gets one with a model of as many parameters and samples."""
    signal = equipped("signal", component.make(), with_model())
    params = torch.tensor(10 * np.random.default_rng(3).normal(size=PARAMETERS), dtype=torch.float32)

    def measure(rows: Array, counts: Counts | None = None, trusted: Mask | tuple[()] = ()) -> Any:
        ids = tuple(f"client {i}" for i in range(len(rows)))
        examples = np.full(len(rows), 10.0) if counts is None else counts
        reading = signal(Cohort(1, ids, Updates.of(rows), examples, params, np.asarray(trusted, bool)))
        return reading.values if isinstance(reading, Reading) else reading

    return measure


def draw(seed: int = 0, n: int = N) -> Array:
    """The updates of clients that are alike."""
    return np.random.default_rng(seed).normal(size=(n, PARAMETERS))


def one_score_each(signal: Measure) -> None:
    """Every client has one finite score, in float64."""
    for n in (1, 2, 5, N):
        scores = signal(draw(n=n))
        form = (getattr(scores, "shape", None), str(getattr(scores, "dtype", None)))
        require(form == ((n,), "float64"), f"n={n}: expected {n} float64 scores; got shape {form[0]} of {form[1]}")
        bad = int((~np.isfinite(scores)).sum())
        require(not bad, f"n={n}: expected finite scores; got {bad} that are not")


def permutation(signal: Measure) -> None:
    """A permutation of the clients permutes the scores."""
    rows, counts, order = draw(), np.arange(1.0, N + 1), np.random.default_rng(1).permutation(N)
    same(signal(rows[order], counts[order]), signal(rows, counts)[order], 1e-9, f"n={N} in another order")


def higher_is_suspicious(signal: Measure) -> None:
    """A client that lies far out, or points against the rest, or sends what another sends, scores highest.

    One of the three is enough, in every draw: a signal looks for one thing.
    """
    ranks = {text: max(_rank(signal, *spoil, seed) for seed in range(6)) for text, spoil in SPOILED.items()}
    if min(ranks.values()) > 1:
        got = ", ".join(f"{text}: place {rank} of {N}" for text, rank in ranks.items())
        raise Broken(f"expected the highest score for one of these in each of 6 draws; got, at worst, {got}")


SPOILED: dict[str, tuple[float, Callable[[Array], Array]]] = {
    "far out": (0.0, lambda rows: rows[7] + 100.0),
    "against the rest": (1.0, lambda rows: -rows.mean(axis=0)),
    "a copy": (0.0, lambda rows: rows[8]),
}
"""What is added to all updates, and what client 7 sends."""


def _rank(signal: Measure, pull: float, spoil: Callable[[Array], Array], seed: int) -> int:
    """The place of client 7 among all, from the highest score down, once it is spoilt."""
    rows = draw(seed) + pull
    rows[7] = spoil(rows)
    scores = signal(rows)
    return 1 + int((scores > scores[7]).sum())


def untrusted_do_not_count(signal: Measure) -> None:
    """A client that is not trusted does not change the scores of the others."""
    rows = draw()
    rows[3] += 100.0
    trusted = np.arange(N) != 3
    got, want = signal(rows, trusted=trusted)[trusted], signal(rows[trusted])
    off = float(np.abs(got - want).max())
    require(off <= 1e-9 + 1e-6 * float(np.abs(want).max()), f"expected the scores without it; got others by {off:.3g}")


def repeatable(signal: Measure) -> None:
    """The same cohort gives the same bits."""
    require(np.array_equal(signal(draw()), signal(draw())), "expected the same scores again; got others")


def input_untouched(signal: Measure) -> None:
    """The updates are only read."""
    rows = draw()
    signal(rows)
    changed = int((rows != draw()).any(axis=1).sum())
    require(not changed, f"expected the updates as they were; got {changed} of {N} changed")


LAWS = laws(one_score_each, permutation, higher_is_suspicious, untrusted_do_not_count, repeatable, input_untouched)
