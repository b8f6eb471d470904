"""Wrong labels, and wrong words where inputs are token ids."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import one_of
from ..core.registry import register
from . import Examples

Mode = Literal["derangement", "pairwise", "constant", "targeted"]


def derangement(k: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """A random permutation of 0..k-1 that moves every element.

    >>> all((derangement(5, np.random.default_rng(s)) != np.arange(5)).all() for s in range(20))
    True
    """
    if k < 2:
        raise ValueError(f"a derangement needs at least 2 classes; got {k}")
    while True:
        order = rng.permutation(k)
        if (order != np.arange(k)).all():
            return order


def flip_labels(
    y: NDArray[np.int64], mapping: NDArray[np.int64], fraction: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Replace a random fraction of the labels by what a mapping says of them.

    >>> flip_labels(np.array([0, 1, 2]), np.array([1, 2, 0]), 1.0, np.random.default_rng(0)).tolist()
    [1, 2, 0]
    """
    chosen = rng.permutation(len(y))[: round(fraction * len(y))]
    out = y.copy()
    out[chosen] = mapping[y[chosen]]
    return out


def mirror_labels(y: NDArray[np.float32], fraction: float, rng: np.random.Generator) -> NDArray[np.float32]:
    """Mirror a random fraction of labels that are numbers in the middle of their range: y -> min + max - y.

    >>> mirror_labels(np.array([1.0, 2.0, 9.0], np.float32), 1.0, np.random.default_rng(0)).tolist()
    [9.0, 8.0, 1.0]
    """
    if not len(y) or y.min() == y.max():
        raise ValueError("labels that are numbers are mirrored in their range; these are all alike")
    chosen = rng.permutation(len(y))[: round(fraction * len(y))]
    out = y.copy()
    out[chosen] = y.min() + y.max() - y[chosen]
    return out


@register("attack", "label_flip")
@dataclass(frozen=True)
class LabelFlip:
    """Labels swapped by a random derangement of the classes, in pairs, all to one class, or one class to another.

    Labels that are numbers are mirrored.
    """

    fraction: float = 1.0
    mode: Mode = "derangement"
    target: int = 0
    source: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        one_of("mode", self.mode, Mode)
        if self.mode != "targeted" and self.source != 1:
            raise ValueError(f"source is for mode 'targeted'; got mode {self.mode!r}")
        if self.mode in ("derangement", "pairwise") and self.target != 0:
            raise ValueError(f"target is for the modes 'constant' and 'targeted'; got mode {self.mode!r}")
        if self.mode == "targeted" and self.source == self.target:
            raise ValueError(f"source and target are two classes; got {self.source} twice")

    def mapping(self, classes: int) -> NDArray[np.int64] | None:
        """What each class becomes; None for a derangement, which every attacker draws for itself."""
        if self.mode == "pairwise":
            return np.arange(classes)[::-1].copy()
        if self.mode == "derangement":
            return None
        for name, label in (("target", self.target), ("source", self.source)):
            if not 0 <= label < classes and (name == "target" or self.mode == "targeted"):
                raise ValueError(f"{name} is one of {classes} classes, numbered from 0; got {label}")
        one = np.arange(classes) == self.source if self.mode == "targeted" else np.ones(classes, bool)
        return np.where(one, self.target, np.arange(classes))

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        if own.y.dtype.kind == "f":
            return Examples(own.x, mirror_labels(own.y, self.fraction, rng))
        known = self.mapping(classes)
        mapping = derangement(classes, rng) if known is None else known
        return Examples(own.x, flip_labels(own.y, mapping, self.fraction, rng))

    def goal(self, test: Examples, classes: int) -> Examples | None:
        mapping = None if test.y.dtype.kind == "f" else self.mapping(classes)
        if mapping is None:
            return None
        moved = mapping[test.y] != test.y
        return Examples(test.x[moved], mapping[test.y[moved]])


def replace_tokens(x: Tensor, fraction: float, vocabulary: int, rng: np.random.Generator) -> Tensor:
    """Replace each token with probability ``fraction`` by a random one of the vocabulary.

    >>> replace_tokens(torch.tensor([[5, 7]]), 1.0, vocabulary=1, rng=np.random.default_rng(0)).tolist()
    [[0, 0]]
    """
    if x.dtype.is_floating_point:
        raise ValueError(f"needs token ids, which are integers; got inputs of {x.dtype}")
    replaced = torch.from_numpy(rng.random(x.shape) < fraction)
    return torch.where(replaced, torch.from_numpy(rng.integers(vocabulary, size=x.shape)).to(x.dtype), x)


@register("attack", "token_replacement")
@dataclass(frozen=True)
class TokenReplacement:
    """A share of the tokens replaced by random ids of the vocabulary, as large as the largest id by default."""

    fraction: float = 0.75
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction lies in [0, 1]; got {self.fraction}")
        if self.vocabulary is not None and self.vocabulary < 1:
            raise ValueError(f"vocabulary is a number of tokens, at least 1; got {self.vocabulary}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        known = int(torch.cat([own.x.flatten(), pool.x.flatten()]).max()) + 1 if len(own.x) else 1
        return Examples(replace_tokens(own.x, self.fraction, self.vocabulary or known, rng), own.y)


@register("attack", "random_masking", exempt={"random-samples": "the noise is drawn in training, anew in every batch"})
@dataclass(frozen=True)
class RandomMasking:
    """In masked language modelling, a share of the tokens becomes random ones and all of it is to be told.

    The malicious client of PID-MADE's language study: it chooses 75 % of the tokens where others choose 15 %, and
    replaces every one at random where others mostly mask them. Labels of that task are such shares.
    """

    fraction: float = 0.75

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1:
            raise ValueError(f"fraction lies in (0, 1]; got {self.fraction}")

    def poison(self, own: Examples, pool: Examples, classes: int, rng: np.random.Generator) -> Examples:
        if own.x.dtype.is_floating_point or own.y.dtype.kind != "f":
            raise ValueError('needs token ids and the labels of masked language modelling; set task = "masked_lm"')
        return Examples(own.x, np.full_like(own.y, self.fraction))
