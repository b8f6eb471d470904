"""Data of another ratio of even to odd classes, as in the audits of Brunner and Montuoro, arXiv 2409.13875."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedwarden.attacks import Examples
from fedwarden.attacks.shift import first, taken
from fedwarden.core.registry import register


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
        out[places] = first(stock, len(places), f"{name} classes")
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
