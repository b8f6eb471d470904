"""Samples that nobody held before, of another distribution of the labels or of the same."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.registry import register
from . import Examples


def exchange(
    y: NDArray[np.int64], pool: NDArray[np.int64], even: float, share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each label the position in the pool of what replaces it, or -1, so that a share ``even`` is of even classes.

        |{i: y'_i even}| = round(even n),   n' = n,   as many replaced as that takes, but at least round(share n)

    Samples of which there are too many make place for the others; beyond that, each makes place for one of its own
    kind. The pool is drawn from without putting back.

    >>> y, pool = np.array([1, 3, 2, 5]), np.array([4, 6, 8, 7])
    >>> exchange(y, pool, 0.25, 0.0, np.random.default_rng(0)).tolist()
    [-1, -1, -1, -1]
    >>> sum(exchange(y, pool, 0.75, 0.0, np.random.default_rng(0)) < 0).item()
    2
    """
    n, odd = len(y), y % 2
    surplus = int((odd == 0).sum()) - round(even * n)
    plenty = 0 if surplus > 0 else 1
    turned = rng.permutation(np.flatnonzero(odd == plenty))[: abs(surplus)]
    rest = rng.permutation(np.setdiff1d(np.arange(n), turned))
    leaving = np.concatenate([turned, rest[: max(0, round(share * n) - abs(surplus))]])
    kind = odd.copy()
    kind[turned] = 1 - plenty
    out = np.full(n, -1)
    for which, name in enumerate(("even", "odd")):
        places = leaving[kind[leaving] == which]
        stock = rng.permutation(np.flatnonzero(pool % 2 == which))
        out[places] = _first(stock, len(places), f"{name} classes")
    return out


@register("attack", "label_shift")
@dataclass(frozen=True)
class LabelShift:
    """Data of another ratio of even to odd classes: fresh samples, or with exchange = 0 as few new ones as it takes."""

    even: float = 0.9
    exchange: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.even <= 1 or not 0 <= self.exchange <= 1:
            raise ValueError(f"even and exchange lie in [0, 1]; got {self.even} and {self.exchange}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        return taken(own, pool, exchange(own.y, pool.y, self.even, self.exchange, rng))


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
        out[places] = _first(stock, len(places), f"class {label}")
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


def _first(stock: NDArray[np.int64], count: int, of: str) -> NDArray[np.int64]:
    if len(stock) < count:
        raise ValueError(
            f"needs {count} samples of {of} that no client holds; its part of the reserve has {len(stock)}; "
            "raise data.reserve"
        )
    return stock[:count]
