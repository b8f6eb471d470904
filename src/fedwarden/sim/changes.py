"""What a client may plan to change in its data, in its own terms: shares of classes, and columns.

Samples of another class come from the reserve, which no client holds, and replace as few of one's own as it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..attacks import Examples
from ..attacks.shift import first, taken
from ..core.errors import nearest
from ..core.registry import register
from .data.sources import Dataset

Labels = NDArray[np.int64]


@runtime_checkable
class Change(Protocol):
    """Another make of one client's data."""

    def change(self, own: Examples, pool: Examples, data: Dataset, rng: np.random.Generator) -> Examples:
        """What each row of ``own`` becomes; ``pool`` are training samples of ``data`` that no client holds."""
        ...


def counts(y: Labels, shares: Mapping[int, float]) -> dict[int, int]:
    """How many samples of each class there are to be: the shares named, and the others in their present proportions.

        n_c = s_c n,   and n_c = (1 - sum s) n |{y = c}| / |{y not named}| of the others, by largest remainder

    >>> counts(np.array([0, 0, 1, 1, 1, 1, 2, 2]), {2: 0.625})
    {0: 1, 1: 2, 2: 5}
    """
    found, present = np.unique(y, return_counts=True)
    others = {int(c): int(n) for c, n in zip(found, present, strict=True) if c not in shares}
    rest = 1 - sum(shares.values())
    if rest < -1e-9 or (rest > 1e-9 and not others):
        most = "at most 1" if others else "1, as there is no other class"
        raise ValueError(f"the shares add up to {1 - rest:g}; expected {most}")
    exact = {c: s * len(y) for c, s in shares.items()}
    exact |= {c: rest * len(y) * n / sum(others.values()) for c, n in others.items()}
    whole = {c: int(n + 1e-9) for c, n in sorted(exact.items())}
    for c in sorted(whole, key=lambda c: whole[c] - exact[c])[: len(y) - sum(whole.values())]:
        whole[c] += 1
    return whole


def remix(y: Labels, pool: Labels, wanted: Mapping[int, int], rng: np.random.Generator) -> Labels:
    """For each label the position in the pool of what replaces it, or -1, so that each class has as many as wanted.

    Of a class with too many, random ones make place. The pool is drawn from without putting back.

    >>> remix(np.array([0, 0, 1]), np.array([1, 1]), {0: 0, 1: 3}, np.random.default_rng(0))[2]
    np.int64(-1)
    """
    leaving, coming = [], []
    for c, n in wanted.items():
        here, stock = rng.permutation(np.flatnonzero(y == c)), rng.permutation(np.flatnonzero(pool == c))
        leaving.append(here[n:])
        coming.append(first(stock, max(0, n - len(here)), c))
    out = np.full(len(y), -1)
    out[rng.permutation(np.concatenate(leaving))] = np.concatenate(coming)
    return out


def shifted(x: Tensor, moves: Mapping[int, float]) -> Tensor:
    """Features (n, d) with some columns moved by so many of their own standard deviations.

        x'[:, j] = x[:, j] + a_j std(x[:, j])

    >>> import torch
    >>> shifted(torch.tensor([[0.0, 5.0], [2.0, 5.0]]), {0: 3.0}).tolist()
    [[3.0, 5.0], [5.0, 5.0]]
    """
    out = x.clone()
    for j, by in moves.items():
        out[:, j] += by * x[:, j].std(correction=0)
    return out


@register("change", "label_shift")
@dataclass(frozen=True)
class LabelShift:
    """Other shares of the classes named in ``shares``; all others keep their proportions."""

    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = ", ".join(f"{name} = {share:g}" for name, share in self.shares.items() if not 0 <= share <= 1)
        if wrong or not self.shares:
            raise ValueError(f"expected shares from 0 to 1, as in shares = {{gear = 0.6}}; got {wrong or 'none'}")

    def change(self, own: Examples, pool: Examples, data: Dataset, rng: np.random.Generator) -> Examples:
        shares = {held(own, name, data): share for name, share in self.shares.items()}
        return _mixed(own, pool, shares, data, rng)


@register("change", "class_drop")
@dataclass(frozen=True)
class ClassDrop:
    """A class is made no more; the others take its place in their proportions."""

    class_: str | int = ""

    def change(self, own: Examples, pool: Examples, data: Dataset, rng: np.random.Generator) -> Examples:
        return _mixed(own, pool, {held(own, self.class_, data): 0.0}, data, rng)


@register("change", "class_new")
@dataclass(frozen=True)
class ClassNew:
    """A class is made that the client did not have, by default as much of it as of its others on average."""

    class_: str | int = ""
    amount: float | None = None

    def __post_init__(self) -> None:
        if self.amount is not None and not 0 < self.amount <= 1:
            raise ValueError(f"amount is a share of the samples in (0, 1]; got {self.amount}")

    def change(self, own: Examples, pool: Examples, data: Dataset, rng: np.random.Generator) -> Examples:
        new = class_of(self.class_, data)
        if (own.y == new).any():
            raise ValueError(f"it has class {self.class_} already; change its share with label_shift")
        amount = 1 / (len(np.unique(own.y)) + 1) if self.amount is None else self.amount
        return _mixed(own, pool, {new: amount}, data, rng)


@register("change", "feature_shift")
@dataclass(frozen=True)
class FeatureShift:
    """Columns of numbers move up, or down, by standard deviations of what the client has in them."""

    columns: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError("expected columns that move, as in columns = {temperature = 2.0}; got none")

    def change(self, own: Examples, pool: Examples, data: Dataset, rng: np.random.Generator) -> Examples:
        for name in self.columns:
            if name not in data.columns:
                raise ValueError(f"there is no column of numbers {name!r}; {nearest(name, data.columns)}")
            if not own.x[:, data.columns[name]].std(correction=0) > 0:
                raise ValueError(f"column {name!r} is constant there, so that it has no deviation to move by")
        return Examples(shifted(own.x, {data.columns[name]: by for name, by in self.columns.items()}), own.y)


def class_of(name: str | int, data: Dataset) -> int:
    """The number of the class of that name."""
    if str(name) not in data.class_names:
        raise ValueError(f"there is no class {str(name)!r}; {nearest(str(name), data.class_names)}")
    return data.class_names.index(str(name))


def held(own: Examples, name: str | int, data: Dataset) -> int:
    """The same of a class that the client has."""
    found = class_of(name, data)
    if not (own.y == found).any():
        has = ", ".join(data.class_names[c] for c in np.unique(own.y))
        raise ValueError(f"it has no samples of class {name}, only of {has}; class_new brings a class in")
    return found


def _mixed(
    own: Examples, pool: Examples, shares: Mapping[int, float], data: Dataset, rng: np.random.Generator
) -> Examples:
    return taken(own, pool, remix(own.y, pool.y, counts(own.y, shares), rng))
