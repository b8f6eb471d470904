"""Figures of the clients beside one another, and of what one of them tells of itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..core.reported import ACROSS, MEASURED, UP
from ..core.words import listed
from ..store.round import OUT
from ..store.series import Series
from ..store.story import IN, VERDICTS, Story
from .grids import line, steady
from .theme import CYCLE, ORANGE, SKY, VERMILION, empty, figure, labels, panels, plain

NAMED = (
    30  # clients up to which every point has a name; of more, those excluded, those sending copies and the chosen one
)
PANELS = 6  # numbers of one client that are drawn
MAPS = 128  # rounds that turn a map to lie on the one before, besides those in which clients were seen last
SAME = 3  # digits in which places are the same
ORDER = (*VERDICTS, IN)
COLOURS: dict[str, str] = {verdict: VERMILION if verdict in OUT else ORANGE for verdict in VERDICTS}


class Spot(NamedTuple):
    """One or several clients at the same place of a map, the round in which they were there, and the gravest state."""

    x: float
    y: float
    round: int
    who: tuple[str, ...]
    state: str


def spots(story: Story) -> list[Spot]:
    """Where each client's update last lay; copies share a place."""
    series = story.series
    there = np.isfinite(series.reported[ACROSS]) & np.isfinite(series.reported[UP])
    last = len(series) - 1 - there[::-1].argmax(axis=0)
    step = 1 << (len(series) // MAPS).bit_length()  # so that a new round turns no earlier map
    some = np.union1d(np.arange(0, len(series), step), last)
    x, y = steady(series.reported[ACROSS][some], series.reported[UP][some])
    states = {client: standing.verdict for client, standing in story.standings.items()}
    found: dict[tuple[float, float, int], list[str]] = {}
    for j in np.flatnonzero(there.any(axis=0)).tolist():
        i = np.searchsorted(some, last[j])
        place = float(x[i, j].round(SAME)), float(y[i, j].round(SAME)), int(series.rounds[last[j]])
        found.setdefault(place, []).append(series.clients[j])
    return [Spot(*at, tuple(who), min((states.get(c, IN) for c in who), key=ORDER.index)) for at, who in found.items()]


def similarity(story: Story, chosen: str | None = None, dark: bool = False) -> go.Figure:
    """A map of the clients: those whose updates go the same way lie near one another, and copies on one point.

    Each is at its last place. A point's ``customdata`` is the client's position.
    """
    series, title = story.series, "Clients by the directions of their updates"
    if not has_map(series):
        return empty(title, "this run has recorded no directions of updates", dark)
    every, place = spots(story), {c: j for j, c in enumerate(series.clients)}
    names, now = labels(series.clients), max(spot.round for spot in every)
    many = sum(len(spot.who) for spot in every) > NAMED
    fig = figure(title, dark, 460, "Close: similar direction. Hollow: no longer takes part.")
    for state in ORDER:
        mine = [spot for spot in every if spot.state == state]
        quiet = many and state not in OUT
        fig.add_scatter(
            x=[spot.x for spot in mine], y=[spot.y for spot in mine], mode="markers+text", name=state,
            text=["" if quiet and len(s.who) == 1 and chosen not in s.who else _named(s, names, place) for s in mine],
            textposition="top center", textfont={"size": 11}, hoverinfo="text", showlegend=bool(mine), cliponaxis=False,
            hovertext=[_hover(spot) for spot in mine], customdata=[[place[spot.who[0]]] for spot in mine],
            marker={
                "size": [(14 if len(spot.who) > 1 else 9) + 4 * (chosen in spot.who) for spot in mine],
                "symbol": ["circle" if spot.round == now else "circle-open" for spot in mine],
                "color": COLOURS.get(state, SKY), "line": {"width": 2, "color": COLOURS.get(state, SKY)},
            },
        )  # fmt: skip
    flat = {"showticklabels": False, "zeroline": False, "ticks": ""}
    return fig.update_layout(xaxis=flat, yaxis={**flat, "scaleanchor": "x"})


def has_map(series: Series) -> bool:
    """Whether the directions of updates were recorded."""
    return all(np.isfinite(series.reported.get(name, np.zeros(0))).any() for name in (ACROSS, UP))


def _named(spot: Spot, names: Sequence[str], place: Mapping[str, int]) -> str:
    more = f" + {len(spot.who) - 1}" if len(spot.who) > 1 else ""
    return f"{names[place[spot.who[0]]]}{more}"


def _hover(spot: Spot) -> str:
    copies = ", all in one direction" if len(spot.who) > 1 else ""
    return f"{plain(listed(spot.who, 6))}{copies}<br>round {spot.round}, {spot.state}"


def told(series: Series, client: str, dark: bool = False) -> go.Figure | None:
    """The numbers a client reported and how long its replies took, a panel each; None where nothing changed."""
    known = {k: v for k, v in _numbers(series, client).items() if np.ptp(v[np.isfinite(v)]) > 0}
    if not known:
        return None
    some = dict(list(known.items())[:PANELS])
    fig = panels("", dark, 90 + 95 * len(some), series.rounds, *(1.0 for _ in some))
    for row, (name, values) in enumerate(some.items(), 1):
        words = plain(name.replace("_", " "))
        fig.add_scatter(
            **line(series.rounds, values), mode="lines+markers", name=words, row=row, col=1, showlegend=False,
            marker={"size": 4}, line={"color": CYCLE[(row - 1) % len(CYCLE)], "width": 2},
            hovertemplate=f"round %{{x}}<br>{words} %{{y:.4g}}<extra></extra>",
        )  # fmt: skip
        fig.update_yaxes(title_text=words.replace("/", "<br>", 1), title_font_size=11, nticks=4, row=row, col=1)
    return fig.update_layout(margin={"t": 16})


def unchanged(series: Series, client: str) -> dict[str, float]:
    """What it told of itself that was the same in every round: a figure would show nothing."""
    known = {k: v[np.isfinite(v)] for k, v in _numbers(series, client).items()}
    return {k: float(v[0]) for k, v in known.items() if np.ptp(v) == 0}


def _numbers(series: Series, client: str) -> dict[str, NDArray[np.float64]]:
    j = series.clients.index(client)
    known = {k: v[:, j] for k, v in sorted(series.reported.items(), key=_own_first) if shown(k)}
    return {k: v for k, v in known.items() if np.isfinite(v).any()}


def shown(name: str) -> bool:
    """Whether a number is of a client's own doing, and not of the guard's.

    >>> [name for name in ("train/loss", "reply/seconds", "update/cosine", "map/x") if shown(name)]
    ['train/loss', 'reply/seconds']
    """
    return name.startswith(("train/", "evaluate/", "reply/"))


def _own_first(pair: tuple[str, object]) -> tuple[bool, str]:
    return pair[0].startswith(MEASURED), pair[0]
