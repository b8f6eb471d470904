"""How each client takes part: who answers, who is silent or broken, since when, and how long an answer takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ..core.reported import BYTES, SECONDS
from ..core.words import number, rounds_of
from .contribution import Contribution
from .round import FURTHER
from .series import Grid, Series

SILENT = frozenset({"no_answer"})
BROKEN = frozenset({"failed", "sent_nothing", "unpacked", "unreadable"})
FEWEST = 4  # values of a loss that have a beginning and an end


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
        words = f"answered in {len(self.answered)} of {self.asked} rounds"
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
    values = next((told for c in columns if len(told := c[np.isfinite(c)]) >= FEWEST), None)
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
