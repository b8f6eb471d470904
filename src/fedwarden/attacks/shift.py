"""Samples that nobody held before, of the same distribution of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from . import Examples


def refresh(y: NDArray[np.int64], pool: NDArray[np.int64], share: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """For each label the position in the pool of what replaces it, or -1: a share of them, of the same distribution.

        |{i: replaced}| = round(share n),   y'_i ~ Categorical(p),   p ~ Dirichlet(n_1, .., n_C)

    n_c counts the labels there are: p is what they say of the distribution they come from (Rubin, The Bayesian
    Bootstrap, 1981), so that old and new labels differ by as much as two draws from one distribution do. The pool is
    drawn from without putting back.

    >>> refresh(np.array([1, 1]), np.array([0, 1, 1]), 0.5, np.random.default_rng(0)).tolist().count(-1)
    1
    """
    leaving = rng.permutation(len(y))[: round(share * len(y))]
    classes, counts = np.unique(y, return_counts=True)
    drawn = rng.choice(classes, len(leaving), p=rng.dirichlet(counts))
    out = np.full(len(y), -1)
    for label in np.unique(drawn):
        places, stock = leaving[drawn == label], rng.permutation(np.flatnonzero(pool == label))
        out[places] = first(stock, len(places), int(label))
    return out


@register("attack", "fresh_samples")
@dataclass(frozen=True)
class FreshSamples:
    """New samples of the same distribution of classes: what a shift is compared with, since it is none."""

    exchange: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.exchange <= 1:
            raise ValueError(f"exchange lies in [0, 1]; got {self.exchange}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return taken(own, pool, refresh(own.y, pool.y, self.exchange, rng))


def taken(own: Examples, pool: Examples, found: NDArray[np.int64]) -> Examples:
    """One's own samples with those replaced whose place in the pool is given, -1 for none."""
    new, (x, y) = np.flatnonzero(found >= 0), (own.x.clone(), own.y.copy())
    x[new], y[new] = pool.x[found[new]], pool.y[found[new]]
    return Examples(x, y)


class Shortage(ValueError):
    """The reserve has fewer samples than needed, of a class by its number or of another kind by its name."""

    def __init__(self, of: int | str, wanted: int, left: int) -> None:
        self.of, self.wanted, self.left = of, wanted, left

    def told(self, names: Sequence[str] = ()) -> str:
        of = self.of if isinstance(self.of, str) else f"class {names[self.of] if names else self.of}"
        has = f"its part of the reserve has {self.left}; raise data.reserve"
        return f"needs {self.wanted} samples of {of} that no client holds; {has}"

    __str__ = told


def first(stock: NDArray[np.int64], count: int, of: int | str) -> NDArray[np.int64]:
    """The first of what is in stock; raises where there are fewer."""
    if len(stock) < count:
        raise Shortage(of, count, len(stock))
    return stock[:count]
