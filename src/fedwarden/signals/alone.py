"""Clients that move weights which the others leave as they are, as a client that teaches a trigger must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.registry import register
from ..core.seeds import numpy_rng
from ..core.stats import Mask, Scores
from ..core.types import Cohort, Dense, Reading
from ..updates.sketch import coarse_lengths, spread_columns
from ..updates.updates import Updates

ENTRIES = 1 << 18  # of the updates that are looked at; larger cohorts are sampled
CLASSES = 100  # at most, for the effect of lone weights on each to be measured
COLUMNS = 1 << 12  # but no fewer columns than these, however many clients there are


def relative(rows: Tensor) -> Tensor:
    """Each entry over the length of its row: x_ij / ||x_i||, and 0 in a row of zeros.

    >>> relative(torch.tensor([[3.0, -4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, -0.800000011920929], [0.0, 0.0]]
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows / torch.where(lengths > 0, lengths, 1.0)


def lone_entries(entries: Tensor, trusted: Mask, times: float) -> Tensor:
    """The entries of each update that are far larger than those of three quarters of the clients, and 0 elsewhere.

        y_ij where |y_ij| > times m_j;   m_j = the (n - floor(n/4))-th smallest of |y_kj| over the n trusted k

    Updates y are brought to one length first: a client that learns more than the others moves all weights more. A
    minority that sends anything lowers m_j to no less than the median honest entry. Under a quarter, it cannot raise it
    above the largest honest one. Among fewer than four clients no entry is lone.

    >>> rows = torch.tensor([[3.0, 4.0, 0.0], [4.0, 3.0, 0.0], [3.0, 4.0, 0.0], [0.0, 3.0, -4.0]])
    >>> lone_entries(relative(rows), np.ones(4, bool), times=30.0)[2:].abs().round(decimals=1).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.800000011920929]]
    """
    n = int(trusted.sum())
    rank = n - n // 4 - 1
    sizes = entries.abs()
    usual = Updates.of(sizes).select(np.flatnonzero(trusted)).ranked_mean(rank, rank + 1)
    return entries * (sizes > times * usual)  # faster than torch.where


def squared(rows: Tensor) -> Scores:
    """The sum of the squares of each row."""
    return np.asarray(rows.square().sum(dim=1).cpu().numpy(), dtype=np.float64)


def on_outputs(
    lone: Tensor, columns: NDArray[np.int64], params: Tensor, layers: Sequence[Dense]
) -> NDArray[np.float64]:
    """What each client's lone weights do to the C outputs, (n, C), for an input of ones and without activations.

        e_i = W_L (... W_2 (W_1i 1) + W_2i 1 ...)

    W_k are the weights of the layers before the round, W_ki the client's lone changes of them.

    >>> layers = [Dense(0, 2, 2), Dense(4, 3, 2)]
    >>> params = torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0])  # units 0, 1 feed outputs 0, 1
    >>> on_outputs(torch.tensor([[0.0, 3.0, 0.0, 0.0], [0.0, 3.0, 4.0, 0.0]]), np.arange(4), params, layers).tolist()
    [[3.0, 0.0, 0.0], [3.0, 4.0, 0.0]]
    """
    effect = lone.new_zeros(len(lone), layers[0].rows)
    for layer, after in pairwise(layers):
        start, stop = np.searchsorted(columns, (layer.start, layer.start + layer.rows * layer.width))
        rows = torch.from_numpy((columns[start:stop] - layer.start) // layer.width).to(lone.device)
        effect = effect.index_add(1, rows, lone[:, start:stop])
        weights = params[after.start : after.start + after.rows * after.width].reshape(after.rows, after.width)
        effect = effect @ weights.to(effect).T
    return np.asarray(effect.double().cpu().numpy(), dtype=np.float64)


def before_output(measured: Sequence[tuple[int, int]], output: int | None) -> list[tuple[int, int]]:
    """The column ranges without those of the output layer.

    The only client with a class moves the row of that class alone. A trigger needs weights of layers before it.

    >>> before_output([(0, 5), (6, 20)], 10), before_output([(0, 5)], None)
    ([(0, 5), (6, 10)], [(0, 5)])
    """
    return [(a, min(b, output)) for a, b in measured if a < output] if output else list(measured)


@register("signal", "alone")
@dataclass(frozen=True)
class Alone:
    """The share of an update that lies in weights which three quarters of the clients hardly move, beyond the median.

    A trigger that only attackers show to the model trains weights that nobody else trains. ``times`` is how many times
    larger than theirs an entry must be. Of large cohorts a part of the weights is looked at, drawn in each round by the
    lengths of all updates, so that nobody can send a trigger in the others. A share of up to ``least`` counts for
    nothing. Where fully connected layers lead to an output of at most a hundred classes, the parts of the reading say
    what the lone weights of clients above it do to each class.
    """

    times: float = 30.0
    least: float = 0.01

    words: ClassVar[str] = "it moves weights that the others leave as they are"
    weights_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not (self.times > 1 and self.least >= 0):
            raise ValueError(f"times is above 1 and least at least 0; got {self.times}, {self.least}")

    def __call__(self, cohort: Cohort) -> Reading:
        within = cohort.reference
        columns, entries = self._sample(cohort)
        lone = lone_entries(entries, within, self.times)
        shares = squared(lone)
        shares = shares - np.median(shares[within])
        shares = np.where(shares > self.least, shares, 0.0)
        output = cohort.output
        if not output or len(output.dense) < 2 or output.dense[-1].rows > CLASSES or cohort.params is None:
            return Reading(shares)
        if not shares.any():
            return Reading(shares)
        effects = on_outputs(lone, columns, cohort.params, output.dense).T
        return Reading(shares, {f"class {c}": effect for c, effect in enumerate(effects)})

    def _sample(self, cohort: Cohort) -> tuple[NDArray[np.int64], Tensor]:
        """The columns that are looked at, and each client's entries in them."""
        rng = numpy_rng(0, "alone", cohort.round, coarse_lengths(cohort.updates.lengths()))
        inner = before_output(cohort.updates.measured, cohort.output and cohort.output.start)
        columns = spread_columns(inner, max(ENTRIES // len(cohort), COLUMNS), rng)
        return columns, relative(cohort.updates.sample(columns))
