"""All clients and all watches of a run at a glance: one row a client, the gravest first, with two small pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from urllib.parse import quote

import numpy as np
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from ...core.words import count, number, printable
from ...figures.grids import ABOVE, nearness
from ...figures.theme import GREY, VERMILION
from ...store.round import OUT
from ...store.series import Series
from ...store.story import IN, VERDICTS, Story
from ..layout import PATH, VERSION, Child, card, field, run_of, table
from ..routes import link, query
from ..routes import number as whole
from ..state import Workspace

ROWS = 50  # of a page
FINE = ("down-weighted", IN)
NOTE = (
    "Of scores, 0 is the median client and 1 the limit (dashed); the line is the highest of all watches over the last "
    "rounds. Bars, from the left: "
)
BELOW = -1.0  # of the pictures: 0 is the median client, 1 the limit
KINDS = (*VERDICTS, "rejected", "down-weighted", IN)
WIDE, HIGH, BAR = 120, 24, 7  # pixels


def part() -> Component:
    """The place of the table on the page."""
    find = dcc.Input("", id="find", type="search", placeholder="client, state or watch", autoComplete="off")
    made = card(
        "Clients at a glance", html.Div(field("Find", find, of="find"), className="tools"), html.Div(id="glance")
    )
    return html.Div(made, id="glance-part", hidden=True)


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(Output("glance", "children"), VERSION, Input("find", "value"), Input("run-address", "search"), PATH,
                  State("watch", "value"))  # fmt: skip
    def rows(version: object, text: object, asked: object, path: object, watch: object) -> object:
        run = run_of(path, version, asked)
        story = workspace.view(run, str(watch or "")).story
        recent = workspace.recent(run)
        return listing(run, glances(story, recent), tuple(recent.watches), str(text or ""), query(asked))


def listing(
    run: int, every: Sequence[Glance], watches: Sequence[str], text: str, asked: Mapping[str, str]
) -> list[Component | None]:
    """The clients in whose row all the words are, from the place that the address names."""
    words = text.lower().split()
    found = [g for g in every if all(w in f"{g.client} {g.state} {g.worst or ''}".lower() for w in words)]
    start = min(whole(asked.get("from")) or 0, max(len(found) - 1, 0)) // ROWS * ROWS
    more = ["highest watch", "score now", "all watches", "last rounds"] if watches else []
    rows = [_row(run, g, watches) for g in found[start : start + ROWS]]
    shown = table("Clients, the gravest first", ["client", "state", "weight", *more], rows, (2, 4))
    legend = f" {NOTE}{', '.join(watches)}." if watches else ""
    note = html.P(f"{told(found)}.{legend}", className="note")
    return [note, shown, _pages(run, len(found), start, asked)]


def _row(run: int, g: Glance, watches: Sequence[str]) -> list[Child]:
    name = printable(g.client)
    row: list[Child] = [
        dcc.Link(name, href=link("client", run, name=g.client), title=f"Show client {name}"),
        html.Span(g.state, className=f"badge {'failed' if g.kind in OUT else 'warned' if g.kind not in FINE else ''}"),
        number(g.weight),
    ]
    if not watches:
        return row
    near = in_words(g.near)
    return [
        *row,
        g.worst or "-",
        f"{min(g.height, 99):.1f}" if g.near else "",
        html.Img(src=bars([g.near.get(name, np.nan) for name in watches]), alt=near, title=near) if g.near else "",
        html.Img(src=sparkline(g.recent), alt=f"now {g.height:.1f}" if g.near else "nothing recent"),
    ]


def _pages(run: int, many: int, start: int, asked: Mapping[str, str]) -> Component | None:
    """The ways to the rows before and after."""
    if many <= ROWS:
        return None
    rest = {k: v for k, v in asked.items() if k != "from"}
    ways = [
        dcc.Link(words, href=link("run", run, **rest, **({"from": at} if at else {})))
        for at, words in ((start - ROWS, f"The {ROWS} before"), (start + ROWS, f"The next {ROWS}"))
        if 0 <= at < many
    ]
    return html.P([f"{start + 1} to {min(start + ROWS, many)} of {many:,}. ", *(c for w in ways for c in (w, " "))])


def told(rows: Sequence[Glance]) -> str:
    """How many clients there are of each state, in a line.

    >>> told([Glance("a", "in the model", "in the model", 1.0, {}, ())] * 2)
    '2 clients: 2 in the model'
    """
    parts = [f"{n} {kind}" for kind, n in Counter(g.kind for g in rows).items()]
    return f"{count(len(rows), 'client')}: {', '.join(parts)}"


@dataclass(frozen=True)
class Glance:
    """One client now: its state in words, its last weight, and how near each watch's limit it is, 0 = median client.

    ``kind`` is one of ``KINDS``. ``near`` are the values of its last round, ``recent`` the highest of all watches by
    round, NaN where there is none.
    """

    client: str
    state: str
    kind: str
    weight: float
    near: Mapping[str, float]
    recent: tuple[float, ...]

    @property
    def worst(self) -> str | None:
        """The watch whose limit it is nearest to, or farthest above; None where no watch has a limit."""
        return max(self.near, key=lambda name: self.near[name]) if self.near else None

    @property
    def height(self) -> float:
        return max(self.near.values(), default=-np.inf)


def glances(story: Story, recent: Series) -> list[Glance]:
    """Every client of a run, the gravest first; ``recent`` are its last rounds with all watches."""
    place = {c: j for j, c in enumerate(recent.clients)}
    near = {name: nearness(w) for name, w in recent.watches.items()}
    highest = reduce(np.fmax, near.values(), np.full(recent.weights.shape, np.nan))
    found = []
    for name, client in story.clients.items():
        line = highest[:, place[name]] if name in place else np.zeros(0)
        known = np.flatnonzero(~np.isnan(line))
        last = {k: float(v[known[-1], place[name]]) for k, v in near.items()} if len(known) else {}
        words = str(client.standing or client.state)
        if client.standing is None and (since := story.health[name].silent_since) is not None:
            words = f"{client.state}, silent since round {since}"
        kind = client.standing.verdict if client.standing else client.state
        shown = {k: v for k, v in last.items() if np.isfinite(v)}
        found.append(Glance(name, words, kind, client.weight, shown, tuple(line.tolist())))
    return sorted(found, key=lambda g: (KINDS.index(g.kind), -g.height))


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
        if not np.isnan(v)
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
