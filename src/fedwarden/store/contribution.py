"""How much each client helps the model: what was measured of harm, told as a contribution.

Where the server has no labelled samples, the way of a client's updates stands in: their cosine to the rest of the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from .series import Series

WATCH = "harm"  # whose signal is the loss that the model would be lower by without a client's update
EFFECT = 0.1  # of harm, times the number of clients: less is not called harm, as in the history ``capital``
ERRORS = 2.0  # standard errors beyond which a mean is told from 0
FEWEST = 3  # rounds that have a standard error worth the name

Values = NDArray[np.float64]
Kind = Literal["helps", "unclear", "no help", "harms"]


@dataclass(frozen=True)
class Contribution:
    """What the updates of a client take off the loss on the server's samples: the mean of some rounds, and its error.

    Where the mean is not within two errors of 0 the client helps, or it does not; that is harm from an effect size on.
    Of a ``cosine`` the mean is that to the rest of the model's step, and no harm is told from it.
    """

    kind: Kind
    mean: float
    error: float
    rounds: int
    of: Literal["loss", "cosine"] = "loss"

    def __str__(self) -> str:
        """In a few words.

        >>> print(Contribution("helps", 0.012, 0.003, 20))
        helps the model: its updates lower the loss by 0.012 +- 0.003 per round
        >>> print(Contribution("unclear", 0.001, math.nan, 1))
        no measurable contribution
        >>> print(Contribution("no help", -0.2, 0.05, 20, "cosine"))
        its updates point away from the others': cosine -0.2 +- 0.05 to the rest of a step
        """
        if self.kind == "unclear":
            return "no measurable contribution"
        if self.of == "cosine":
            way = "agree with" if self.mean > 0 else "point away from"
            return f"its updates {way} the others': cosine {self.mean:.2g} +- {self.error:.1g} to the rest of a step"
        what = {"helps": "helps the model", "no help": "does not help the model", "harms": "harms the model"}[self.kind]
        way = "lower" if self.mean > 0 else "raise"
        return f"{what}: its updates {way} the loss by {abs(self.mean):.2g} +- {self.error:.1g} per round"


def contribution(harm: Values, clients: Values) -> Contribution:
    """The contribution of a client whose harm was measured in some rounds, NaN in the others.

        c = -mean_t d_t,   error = s / sqrt(T),   harms where mean_t n_t d_t - 2 errors of that > 0.1

    s is the standard deviation over the T rounds of the client, n_t the number of ``clients`` that were measured.

    >>> ten = np.full(4, 10.0)
    >>> contribution(np.array([-0.03, np.nan, -0.02, -0.01]), ten).kind
    'helps'
    >>> [contribution(d * np.array([1.0, 1.1, np.nan, 1.2]), ten).kind for d in (0.005, 0.05)]
    ['no help', 'harms']
    """
    seen = np.isfinite(harm)
    d, n = harm[seen], clients[seen]
    if len(d) < FEWEST:
        return Contribution("unclear", -float(d.mean()) if len(d) else math.nan, math.nan, len(d))
    (mean, error), (scaled, its_error) = ((float(x.mean()), float(x.std(ddof=1) / len(x) ** 0.5)) for x in (d, n * d))
    kind: Kind = "unclear"
    if mean < -ERRORS * error:
        kind = "helps"
    elif mean > ERRORS * error:
        kind = "harms" if scaled - ERRORS * its_error > EFFECT else "no help"
    return Contribution(kind, -mean, error, len(d))


def contributions(series: Series) -> dict[str, Contribution]:
    """Of every client that was measured; nothing where harm was not watched."""
    if WATCH not in series.watches:
        return {}
    harm = series.watches[WATCH].signal
    measured = np.isfinite(harm)
    clients = measured.sum(axis=1).astype(np.float64)
    return {c: contribution(harm[:, j], clients) for j, c in enumerate(series.clients) if measured[:, j].any()}


def agreement(cosines: Values) -> Contribution:
    """The same from the cosines of a client's updates to the rest of the model's step, NaN in rounds without it.

    >>> agreement(np.array([0.5, 0.6, np.nan, 0.7])).kind, agreement(np.array([0.1, -0.1, 0.0])).kind
    ('helps', 'unclear')
    """
    found = contribution(-cosines, np.zeros(len(cosines)))  # no effect size makes harm of it
    return replace(found, of="cosine")
