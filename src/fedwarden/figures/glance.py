"""All clients and all watches at a glance: one row a client, with two pictures of a few lines each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import numpy as np

from ..core.words import count
from ..store.health import healths
from ..store.series import Series
from ..store.verdict import STATES, verdict
from .grids import ABOVE, nearness
from .theme import GREY, VERMILION

BELOW = -1.0  # of the pictures: 0 is the median client, 1 the limit
UNWEIGHED = "no weight"  # a copy of another client's update, one that an aggregator did not pick, a rejected reply
WIDE, HIGH, BAR = 120, 24, 7  # pixels


@dataclass(frozen=True)
class Glance:
    """One client now: its state in words, its last weight, and how near each watch's limit it is, 0 = median client.

    ``near`` are the values of its last round, ``recent`` the highest of all watches by round, NaN where there is none.
    """

    client: str
    state: str
    kind: str
    weight: float
    near: Mapping[str, float]
    recent: tuple[float, ...]
    flagged: bool

    @property
    def worst(self) -> str | None:
        """The watch whose limit it is nearest to, or farthest above; None where no watch has a limit."""
        return max(self.near, key=lambda name: self.near[name]) if self.near else None

    @property
    def height(self) -> float:
        return max(self.near.values(), default=-np.inf)


def glances(series: Series, recent: Series) -> list[Glance]:
    """Every client of a run, the gravest first; ``recent`` are its last rounds with all watches."""
    standing = {s.client: s for s in verdict(series).standings}
    health, place = healths(series), {c: j for j, c in enumerate(recent.clients)}
    last = _last_weights(series)
    near = {name: nearness(w) for name, w in recent.watches.items()}
    highest = _highest(list(near.values()), recent.weights.shape)
    flagged = recent.flagged[-1] if len(recent) else np.zeros(0, bool)
    found = []
    for j, client in enumerate(series.clients):
        at, said, h = place.get(client), standing.get(client), health[client]
        line = highest[:, at] if at is not None else np.zeros(0)
        known = np.flatnonzero(~np.isnan(line))
        kind, state = ("", "in the model") if last[j] > 0 else (UNWEIGHED, UNWEIGHED)
        if said is not None:
            kind, state = said.state, str(said)
        elif h.silent_since is not None:
            kind, state = "silent", f"silent since round {h.silent_since}"
        found.append(
            Glance(
                client,
                state,
                kind,
                float(last[j]),
                {k: float(v[known[-1], at]) for k, v in near.items() if np.isfinite(v[known[-1], at])}
                if len(known)
                else {},
                tuple(line.tolist()),
                at is not None and bool(flagged[at]),
            )
        )
    order = (*STATES, "silent", UNWEIGHED, "")
    return sorted(found, key=lambda g: (order.index(g.kind), -g.height))


def in_words(values: Mapping[str, float]) -> str:
    """How near each watch's limit a client is, for those who do not see the picture.

    >>> in_words({"far": 1.25, "apart": 0.0})
    'far 1.2, apart 0.0'
    """
    return ", ".join(f"{name} {min(value, 99.0):.1f}" for name, value in values.items()) or "no watch has a limit"


def bars(values: Sequence[float]) -> str:
    """One bar a watch, from the median client up to twice the limit, as the address of a picture."""
    drawn = [
        f'<rect x="{BAR * i}" y="{_y(v):.1f}" width="{BAR - 2}" height="{HIGH - _y(v):.1f}" fill="{_colour(v)}"/>'
        for i, v in enumerate(values)
    ]
    return _picture(max(BAR * len(values), 1), [*drawn, _limit(BAR * len(values))])


def sparkline(values: Sequence[float]) -> str:
    """The last rounds as a line with a dot where it is above the limit, as the address of a picture.

    >>> sparkline([0.0, 1.5]).count("circle")
    1
    """
    step = WIDE / max(len(values) - 1, 1)
    points = [(step * i, _y(v), v) for i, v in enumerate(values)]
    pieces: list[list[str]] = [[]]
    for x, y, v in points:
        if np.isnan(v):
            pieces.append([])
        else:
            pieces[-1].append(f"{x:.1f},{y:.1f}")
    lines = [
        f'<polyline points="{" ".join(piece * (1 + (len(piece) == 1)))}" fill="none" stroke="{GREY}" '
        'stroke-width="1.5" stroke-linecap="round"/>'
        for piece in pieces
        if piece
    ]
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{VERMILION}"/>' for x, y, v in points if v >= 1]
    return _picture(WIDE, [_limit(WIDE), *lines, *dots])


def told(rows: Sequence[Glance]) -> str:
    """How many clients there are of each state, in a line.

    >>> one = Glance("a", "in the model", "", 1.0, {}, (), False)
    >>> told([one, one])
    '2 clients: 2 in the model'
    """
    kinds = [g.kind or "in the model" for g in rows]
    parts = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds)]
    return f"{count(len(rows), 'client')}: {', '.join(parts)}"


def _last_weights(series: Series) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The weight of each client in the last round that it took part in; 0 where it never did."""
    there = ~np.isnan(series.weights)
    if not len(series):
        return np.zeros(len(series.clients))
    last = len(series) - 1 - there[::-1].argmax(axis=0)
    return np.asarray(np.nan_to_num(series.weights[last, np.arange(len(series.clients))]), dtype=np.float64)


def _highest(
    grids: Sequence[np.ndarray[tuple[int, int], np.dtype[np.float64]]], shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The highest of several grids in each cell; NaN where none has a value."""
    out = np.full(shape, np.nan)
    for grid in grids:
        out = np.fmax(out, grid)
    return out


def _y(value: float) -> float:
    return 1 + (HIGH - 2) * (ABOVE - min(max(value, BELOW), ABOVE)) / (ABOVE - BELOW)


def _colour(value: float) -> str:
    return VERMILION if value >= 1 else GREY


def _limit(width: float) -> str:
    return (
        f'<line x1="0" x2="{width}" y1="{_y(1.0):.1f}" y2="{_y(1.0):.1f}" stroke="{VERMILION}" stroke-dasharray="3 3"/>'
    )


def _picture(width: float, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HIGH}" viewBox="0 0 {width} {HIGH}">'
    return "data:image/svg+xml," + quote(f"{head}{''.join(parts)}</svg>")
