"""What one read of the updates tells, and how another weighted sum follows from the one that was read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Mask, Norms, Weights

LARGEST = 1e15  # the largest norm of an update that is still taken for numbers: its square is safe in float32
CANCELLATION = 100.0  # how many times larger than the rest removed rows may be before the sum is read again


class Sum:
    """A weighted sum of the rows: shared with all that look at it, or handed over, once, if nobody has seen it.

    >>> import torch
    >>> unseen, seen = Sum(torch.zeros(1)), Sum(torch.zeros(1))
    >>> look = seen.look()
    >>> seen.take() is look, seen.gone, unseen.take() is look, unseen.gone
    (False, False, False, True)
    """

    def __init__(self, numbers: Tensor) -> None:
        self._numbers: Tensor | None = numbers
        self._seen = False

    @property
    def gone(self) -> bool:
        return self._numbers is None

    def look(self) -> Tensor:
        """The sum, which must not be written to."""
        self._seen = True
        return self._there()

    def take(self) -> Tensor:
        """The sum to write to; a copy if others have seen it."""
        numbers = self._there()
        if self._seen:
            return numbers.clone()
        self._numbers = None
        return numbers

    def _there(self) -> Tensor:
        if self._numbers is None:
            raise RuntimeError("this sum was handed over; read the rows again")
        return self._numbers


@dataclass(frozen=True)
class Survey:
    """What one read of the updates tells: everything that PID-MADE with a mean centroid needs.

    ``sq_norms`` are over all columns, so that nothing non-finite hides in a buffer; ``sq_lengths`` and
    ``sq_distances`` over the measured ones. ``centre`` are the weights of the mean that distances are to, where it was
    read with ``spread``; ``shares`` those of the ``sum``. ``products`` are inner products of all pairs, where they came
    from the same read.
    """

    sq_norms: Norms
    sq_lengths: Norms
    sq_distances: Norms
    sum: Sum
    centre: Weights
    shares: Weights
    spread: bool
    products: NDArray[np.float64] | None = None

    def answers(self, centre: Weights, shares: Weights, spread: bool) -> bool:
        """Whether another survey, with these weights, would tell nothing new."""
        same = np.array_equal(self.centre, centre) and np.array_equal(self.shares, shares)
        return same and self.spread >= spread and not self.sum.gone

    @property
    def total(self) -> Tensor:
        """The weighted sum, which must not be written to."""
        return self.sum.look()

    @property
    def finite(self) -> Mask:
        """Rows without NaN or Inf whose norm is at most ``LARGEST``, so that no later sum of squares overflows."""
        return np.asarray(self.sq_norms <= LARGEST**2)

    @property
    def all_finite(self) -> bool:
        return bool(self.sq_norms.max(initial=0.0) <= LARGEST**2)


def mean_of(mask: Mask) -> Weights:
    """The weights of the mean of some rows."""
    return mask / max(int(mask.sum()), 1)


def counted(weights: Weights) -> NDArray[np.int_]:
    """The rows of some weight; all where none has any.

    >>> counted(np.array([0.5, 0.0, 0.5])).tolist(), counted(np.zeros(2)).tolist()
    ([0, 2], [0, 1])
    """
    return np.flatnonzero(weights) if weights.any() else np.arange(len(weights))


def correction(weights: Weights, survey: Survey) -> tuple[float, Weights] | None:
    """weights = scale * shares + delta with few non-zero entries in delta, or None where a new read is better."""
    if survey.sum.gone:
        return None
    counted = (survey.shares > 0) & (weights > 0)
    if not counted.any():
        return None
    scale = float(np.median(weights[counted] / survey.shares[counted]))
    delta = weights - scale * survey.shares
    delta[np.abs(delta) <= 1e-12 * np.abs(weights).max()] = 0.0
    changed = delta != 0
    mass = survey.shares * np.sqrt(survey.sq_norms)
    if 2 * changed.sum() > counted.sum() or not mass[changed].sum() <= CANCELLATION * mass[~changed].sum():
        return None
    return scale, delta
