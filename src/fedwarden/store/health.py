"""How each client takes part: who answers, who is silent or broken, and how much each of them helps the model.

What was measured of harm is told as a contribution. Where the server has no labelled samples, the way of a client's
updates stands in: their cosine to the rest of the step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.reported import BYTES, SECONDS
from ..core.words import count, number, rounds_of
from .round import FURTHER
from .series import Grid, Series

SILENT = frozenset({"no_answer"})
BROKEN = frozenset({"failed", "sent_nothing", "unpacked", "unreadable"})
LOSSES = 4  # values of a loss that have a beginning and an end
WATCH = "harm"  # whose signal is the loss that the model would be lower by without a client's update
EFFECT = 0.1  # of harm, times the number of clients: less is not called harm, as in the history ``capital``
ERRORS = 2.0  # standard errors beyond which a mean is told from 0
FEWEST = 3  # rounds that have a standard error worth the name

Values = NDArray[np.float64]
Kind = Literal["helps", "unclear", "no help", "harms"]


@dataclass(frozen=True)
class Health:
    """One client's replies over a run: the rounds with one that was let in, those without any, and those in error.

    ``refused`` are rounds in which a reply could be read and was not let in. ``seconds`` and ``bytes`` are medians of
    the replies, NaN where nobody measured them; ``told`` are the last numbers that it reported of itself.
    """

    answered: tuple[int, ...]
    silent: tuple[int, ...]
    broken: tuple[int, ...]
    refused: tuple[int, ...]
    seconds: float
    bytes: float
    told: Mapping[str, float] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """The rounds in which something was expected of it."""
        return len({*self.answered, *self.silent, *self.broken, *self.refused})

    @property
    def last(self) -> int | None:
        """The last round with any reply of it."""
        return max((*self.answered, *self.refused), default=None)

    @property
    def silent_since(self) -> int | None:
        """The round since which nothing of it came, while it was asked; None where its last reply came."""
        return next((t for t in sorted((*self.silent, *self.broken)) if t > (self.last or 0)), None)

    def __str__(self) -> str:
        """In a few words.

        >>> print(Health((1, 2, 3), (4, 5), (), (), 2.5, np.nan))
        answered in 3 of 5 rounds, typically in 2.5 s; no answer in 2 rounds from 4 to 5, and none since round 4
        """
        words = f"answered in {len(self.answered)} of {count(self.asked, 'round')}"
        words += f", typically in {number(self.seconds)} s" if np.isfinite(self.seconds) else ""
        for rounds, what in ((self.silent, "no answer"), (self.broken, "an error"), (self.refused, "rejected")):
            words += f"; {what} in {rounds_of(rounds)}" if rounds else ""
        return words + (f", and none since round {self.silent_since}" if self.silent_since else "")


def healths(series: Series) -> dict[str, Health]:
    """Of every client of a run."""
    nothing = np.full(series.weights.shape, np.nan)
    took, sent = (_medians(series.reported.get(name, nothing)) for name in (SECONDS, BYTES))
    of_client: dict[str, list[tuple[int, str]]] = {}
    for t, client, note in series.rejected:
        of_client.setdefault(client, []).append((t, note.kind))
    found = {}
    for j, client in enumerate(series.clients):
        kinds = of_client.get(client, [])
        without = {t for t, kind in kinds if kind not in FURTHER}
        came = series.rounds[~np.isnan(series.weights[:, j])].tolist()
        silent, broken = (tuple(t for t, kind in kinds if kind in some) for some in (SILENT, BROKEN))
        found[client] = Health(
            tuple(t for t in came if t not in without) if without else tuple(came),
            silent,
            broken,
            tuple(t for t, kind in kinds if kind not in SILENT | BROKEN),
            float(took[j]),
            float(sent[j]),
            {name: value for name, value in _last(series, j).items() if name.startswith(("train/", "evaluate/"))},
        )
    return found


def at_odds(series: Series, client: str, contribution: Contribution | None) -> str:
    """A client whose own loss falls, it says, while its updates do the model no good; empty where that is not so."""
    losses = [name for name in series.reported if name.startswith("train/") and "loss" in name]
    if contribution is None or contribution.kind not in ("harms", "no help"):
        return ""
    columns = (series.reported[name][:, series.clients.index(client)] for name in losses)
    values = next((told for c in columns if len(told := c[np.isfinite(c)]) >= LOSSES), None)
    if values is None:
        return ""
    third = len(values) // 3
    first, last = (float(np.median(part)) for part in (values[:third], values[-third:]))
    if not last < first:
        return ""
    return f"it reports a falling loss ({number(first)} to {number(last)}), and {contribution}"


def _medians(values: Grid) -> Grid:
    """The median of each column over the numbers in it; NaN where there are none."""
    out = np.full(values.shape[1], np.nan)
    some = np.isfinite(values).any(axis=0)
    out[some] = np.nanmedian(values[:, some], axis=0)
    return out


def _last(series: Series, j: int) -> dict[str, float]:
    """The last number of each name that a client reported."""
    columns = ((name, grid[:, j][np.isfinite(grid[:, j])]) for name, grid in series.reported.items())
    return {name: float(column[-1]) for name, column in columns if len(column)}


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
        helps the model: its updates lower the loss by 0.012 ± 0.003 per round
        >>> print(Contribution("unclear", 0.001, math.nan, 1))
        no measurable contribution
        >>> print(Contribution("no help", -0.2, 0.05, 20, "cosine"))
        its updates point away from the others': cosine -0.2 ± 0.05 to the rest of a step
        """
        if self.kind == "unclear":
            return "no measurable contribution"
        if self.of == "cosine":
            way = "agree with" if self.mean > 0 else "point away from"
            return f"its updates {way} the others': cosine {self.mean:.2g} ± {self.error:.1g} to the rest of a step"
        what = {"helps": "helps the model", "no help": "does not help the model", "harms": "harms the model"}[self.kind]
        way = "lower" if self.mean > 0 else "raise"
        return f"{what}: its updates {way} the loss by {abs(self.mean):.2g} ± {self.error:.1g} per round"


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
