"""What a federation learns: what a model is asked, how wrong its answers are, and what is told of them.

A task also says what a label is, and so what an attacker can do to one: a class, a number, or how much of a text is
hidden from the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from ..core.errors import ConfigError
from ..core.registry import register

if TYPE_CHECKING:  # a worker trains without the data sets' own modules
    from .data.sources import Dataset

UNASKED = -100  # in the place of an answer where none is wanted; torch's own number for it


class Task(Protocol):
    """Turns samples into questions, and answers into losses; ``batch`` samples are evaluated at a time."""

    @property
    def batch(self) -> int: ...

    def fit(self, data: Dataset) -> Self:
        """The task on this data set; raises where its labels are of another kind."""
        ...

    def ask(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """The inputs (n, ...) of the model and the right answers (n, ...), both on the CPU."""
        ...

    def losses(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """The loss (k,) of each answer; training lowers their mean."""
        ...

    def scores(self, outputs: Tensor, answers: Tensor) -> Mapping[str, Tensor]:
        """What is told besides the loss, a number (k,) for each answer by name; their means are the metrics."""
        ...


@register("task", "classification")
@dataclass(frozen=True)
class Classification:
    """Which of some classes a sample is; labels are classes."""

    batch: ClassVar[int] = 512

    def fit(self, data: Dataset) -> Self:
        if data.y_train.is_floating_point():
            first = int((data.y_train != data.y_train.round()).to(torch.uint8).argmax())
            raise ConfigError(
                f"classification needs classes as labels (int64); this data set has {data.y_train.dtype}, such as "
                f"{float(data.y_train[first]):g} of {data.holder(first)}: "
                'set task = "regression", or "masked_lm" for text'
            )
        return self

    def ask(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return x, y

    def losses(self, outputs: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(outputs, answers, reduction="none")

    def scores(self, outputs: Tensor, answers: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": outputs.argmax(dim=1) == answers}


@register("task", "regression")
@dataclass(frozen=True)
class Regression:
    """A number for a sample, by squared error; labels are numbers."""

    batch: ClassVar[int] = 512

    def fit(self, data: Dataset) -> Self:
        if not data.y_train.is_floating_point() or data.classes != 1 or data.tokens is not None:
            raise ConfigError(
                f"regression needs a number as label (float32) and one output; this data set has {data.y_train.dtype} "
                f'and {data.classes} outputs: set task = "classification", or "masked_lm" for text; whole numbers in a '
                "file of your own are taken as numbers with numbers = true"
            )
        return self

    def ask(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        return x, y

    def losses(self, outputs: Tensor, answers: Tensor) -> Tensor:
        return (outputs.squeeze(1) - answers).square()

    def scores(self, outputs: Tensor, answers: Tensor) -> Mapping[str, Tensor]:
        return {"absolute_error": (outputs.squeeze(1) - answers).abs()}


def mask_tokens(
    tokens: Tensor, rate: Tensor, hidden: Tensor, changed: Tensor, mask: int, vocabulary: int, special: Sequence[int],
    rng: torch.Generator,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Texts (n, L) with some tokens hidden or changed, and which (n, L) were chosen; ``rate`` and so on are (n,).

        chosen with probability ``rate``; of those a share ``hidden`` becomes the mask, a share ``changed`` a random
        token of the vocabulary, and the rest stays as it is

    Devlin et al. (2019), section 3.1, with .15, .8 and .1. Differs from the paper: a text in which nothing was chosen
    has the token chosen that came nearest to it. Special tokens are never chosen.

    >>> ones, zeros, rng = torch.ones(1), torch.zeros(1), torch.Generator().manual_seed(0)
    >>> mask_tokens(torch.tensor([[1, 7, 8]]), ones, ones, zeros, 4, 9, [1], rng)[0].tolist()
    [[1, 4, 4]]
    """
    if vocabulary < 1 or tokens.is_floating_point():
        raise ValueError(f"needs token ids, which are integers below {vocabulary}; got {tokens.dtype}")
    draws, fates = torch.rand(2, *tokens.shape, generator=rng)
    others = torch.randint(vocabulary, tokens.shape, generator=rng)
    words = ~torch.isin(tokens, torch.tensor(list(special), dtype=tokens.dtype))
    draws = draws.masked_fill(~words, 2.0)
    chosen = words & ((draws < rate[:, None]) | (draws == draws.amin(dim=1, keepdim=True)))
    told = torch.where(fates < hidden[:, None], mask, torch.where(fates < (hidden + changed)[:, None], others, tokens))
    return torch.where(chosen, told, tokens), chosen


@register("task", "masked_lm")
@dataclass(frozen=True)
class MaskedLM:
    """Which tokens of a text were hidden; a label above 0 is the share that an attacker replaces by random ones.

    A share ``rate`` of the tokens, drawn anew in every batch, is to be told: ``hidden`` of them are masked, ``changed``
    are random and the rest is left as it is (Devlin et al. 2019). A text with a label has that share of its tokens
    replaced by random ones instead, and the model learns to make the text of noise. The data set knows the rest.

    A question is (2, L): the tokens, and 1 where an answer is wanted; an answer is the token there, else -100.
    """

    rate: float = 0.15
    hidden: float = 0.8
    changed: float = 0.1
    mask: int | None = None
    vocabulary: int | None = None
    special: tuple[int, ...] = ()

    batch: ClassVar[int] = 32

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1 or min(self.hidden, self.changed, 1 - self.hidden - self.changed) < -1e-9:
            raise ValueError(
                "rate lies in (0, 1], and hidden and changed are shares that add up to at most 1; "
                f"got {self.rate}, {self.hidden} and {self.changed}"
            )

    def fit(self, data: Dataset) -> Self:
        if data.tokens is None:
            raise ConfigError(
                "masked_lm needs texts as token ids, and which of them is the mask; this data set has none: "
                'take "medquad", or set another task'
            )
        return replace(self, mask=data.tokens.mask, vocabulary=data.classes, special=data.tokens.special)

    def ask(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        if self.mask is None or self.vocabulary is None:
            raise ValueError("masked_lm needs the ids of a vocabulary; fit it to a data set first")
        attacked = y > 0
        rate = torch.where(attacked, y, self.rate)
        hidden, changed = torch.where(attacked, 0.0, self.hidden), torch.where(attacked, 1.0, self.changed)
        told, chosen = mask_tokens(x, rate, hidden, changed, self.mask, self.vocabulary, self.special, rng)
        return torch.stack([told, chosen.to(told.dtype)], dim=1), torch.where(chosen, x, UNASKED)

    def losses(self, outputs: Tensor, answers: Tensor) -> Tensor:
        return F.cross_entropy(outputs.float(), answers[answers != UNASKED], reduction="none")

    def scores(self, outputs: Tensor, answers: Tensor) -> Mapping[str, Tensor]:
        return {"accuracy": outputs.argmax(dim=1) == answers[answers != UNASKED]}
