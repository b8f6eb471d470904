"""Wrong words: inputs are token ids."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from . import Examples


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
