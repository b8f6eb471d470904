"""Clients that move weights which the others leave as they are, as who teaches a model a trigger must."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core.registry import register
from ..core.seeds import numpy_rng
from ..core.stats import Mask, Scores, median
from ..core.types import Cohort
from ..updates.sampling import coarse_lengths, spread_columns
from ..updates.updates import Updates

ENTRIES = 1 << 18  # of the updates that are looked at; larger cohorts are sampled
COLUMNS = 1 << 12  # but no fewer columns than these, however many clients there are


def relative_sizes(rows: Tensor) -> Tensor:
    """The size of each entry beside the length of its row: |x_ij| / ||x_i||, and 0 in a row of zeros.

    >>> relative_sizes(torch.tensor([[3.0, -4.0], [0.0, 0.0]])).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows.abs().div_(torch.where(lengths > 0, lengths, 1.0))


def share_alone(sizes: Tensor, trusted: Mask, times: float) -> Scores:
    """The share of each update's squared length in entries far larger than those of three quarters of the clients.

        y_ij = |x_ij| / ||x_i||;   m_j = the (n - floor(n/4))-th smallest of y_kj over the n trusted k
        s_i = sum of y_ij^2 over the j with y_ij > times m_j

    Updates are brought to one length first: who learns more than the others moves all weights more. A minority that
    sends anything lowers m_j to no less than the median honest entry. Under a quarter, it cannot raise it above the
    largest honest one. Fewer than four clients have no quarter, and so nobody is alone.

    >>> rows = torch.tensor([[3.0, 4.0, 0.0], [4.0, 3.0, 0.0], [3.0, 4.0, 0.0], [0.0, 3.0, 4.0]])
    >>> share_alone(relative_sizes(rows), np.ones(4, bool), times=30.0).round(2).tolist()
    [0.0, 0.0, 0.0, 0.64]
    """
    n = int(trusted.sum())
    rank = n - n // 4 - 1
    usual = Updates.of(sizes).select(np.flatnonzero(trusted)).ranked_mean(rank, rank + 1)
    alone = sizes * (sizes > times * usual)  # faster than torch.where
    return np.asarray(alone.square_().sum(dim=1).cpu().numpy(), dtype=np.float64)


def teaching_alone(biases: Tensor) -> Mask:
    """The clients that teach a class which hardly any other client teaches, from what they do to the output's bias.

        i teaches c where b_ic > 0; alone where at most max(1, (n - 1) / 10) other clients do

    A step down the gradient raises the bias of the classes that a client has, and lowers those that it lacks. The only
    client with a class has reason to move weights alone. An attacker whose trigger leads to a class that the others
    have as well does not look like that: it cannot make their biases fall.

    >>> teaching_alone(torch.tensor([[0.5, -0.1], [-0.1, 0.2], [-0.2, 0.1], [-0.1, 0.3]])).tolist()
    [True, False, False, False]
    """
    raised = biases > 0
    others = raised.sum(dim=0) - raised.int()
    alone = raised & (others <= max(1, (len(biases) - 1) // 10))
    return np.asarray(alone.any(dim=1).cpu().numpy(), dtype=bool)


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
    lengths of all updates, so that nobody can send a trigger in the others. A client that teaches a class which hardly
    any other client has is let move weights of its own, see :func:`teaching_alone`.
    """

    times: float = 30.0

    words: ClassVar[str] = "it moves weights that the others leave as they are"
    weights_only: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.times > 1:
            raise ValueError(f"times is above 1; got {self.times}")

    def begin(self, cohort: Cohort) -> None:
        """Take the sample, which is the same whoever is trusted."""
        self._sizes(cohort)

    def __call__(self, cohort: Cohort) -> Scores:
        within = cohort.reference
        shares = share_alone(self._sizes(cohort), within, self.times)
        if (output := cohort.output) and output.size > 2:
            biases = cohort.updates.sample(np.arange(output.bias, output.bias + output.size))
            shares = np.where(teaching_alone(biases), 0.0, shares)
        return np.asarray(shares - median(shares[within]), dtype=np.float64)

    def _sizes(self, cohort: Cohort) -> Tensor:
        """Of the entries that are looked at; kept with the updates."""

        def make() -> Tensor:
            rng = numpy_rng(0, "alone", cohort.round, coarse_lengths(cohort.updates.lengths()))
            inner = before_output(cohort.updates.measured, cohort.output and cohort.output.start)
            columns = spread_columns(inner, max(ENTRIES // len(cohort), COLUMNS), rng)
            return relative_sizes(cohort.updates.sample(columns))

        return cohort.updates.once(("alone", cohort.round), make)
