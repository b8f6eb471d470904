"""All clients and all watches of a run at a glance: one row a client, the gravest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ...core.words import number, printable
from ...figures.glance import Glance, bars, glances, in_words, sparkline, told
from ...store.round import OUT
from ...store.story import IN
from ..layout import Child, aria, card, field, table
from ..routes import link, query, read
from ..routes import number as whole
from ..state import Workspace

MOST = 100  # rows of a page
FINE = ("down-weighted", IN)
NOTE = (
    "0 is the median client, 1 the limit (dashed). There is a bar for each watch, and a line for the highest of them "
    "over the last rounds."
)


def part() -> Component:
    """The place of the table on the page."""
    find = dcc.Input("", id="find", type="search", placeholder="client, state or watch", autoComplete="off")
    made = card(
        "Clients at a glance", html.Div(field("Find", find, of="find"), className="tools"), html.Div(id="glance")
    )
    return html.Div(made, id="glance-part", hidden=True)


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(
        Output("glance", "children"),
        Input("version", "data"),
        Input("find", "value"),
        Input("run-address", "search"),
        State("url", "pathname"),
        State("watch", "value"),
    )
    def rows(version: object, text: object, asked: object, path: object, watch: object) -> object:
        run = read(path).run
        if version is None or asked is None or run is None:
            raise PreventUpdate
        recent = workspace.recent(run)
        found = glances(workspace.view(run, str(watch or "")).story, recent.series)
        return listing(run, found, bool(recent.watches), str(text or ""), query(asked))


def listing(
    run: int, every: Sequence[Glance], watched: bool, text: str, asked: Mapping[str, str]
) -> list[Component | None]:
    """The clients in whose row all the words are, from the place that the address names."""
    words = text.lower().split()
    found = [g for g in every if all(w in f"{g.client} {g.state} {g.worst or ''}".lower() for w in words)]
    start = min(whole(asked.get("from")) or 0, max(len(found) - 1, 0)) // MOST * MOST
    heads = ["client", "state", "weight", *(["worst watch", "", "watches", "last rounds"] if watched else [])]
    rows = [_row(run, g, watched, asked) for g in found[start : start + MOST]]
    shown = table("Clients, the gravest first", heads, rows, (2, 4))
    note = html.P(f"{told(found)}. {NOTE if watched else ''}", className="note")
    return [note, shown, _pages(run, len(found), start, asked)]


def _row(run: int, g: Glance, watched: bool, asked: Mapping[str, str]) -> list[Child]:
    name = printable(g.client)
    here = aria(current="true") if asked.get("client") == g.client else {}
    href = link("run", run, **{**asked, "client": g.client})
    row: list[Child] = [
        html.Span(dcc.Link(name, href=href, title=f"Show client {name}"), **here),
        html.Span(g.state, className=f"badge {'failed' if g.kind in OUT else 'warned' if g.kind not in FINE else ''}"),
        number(g.weight),
    ]
    if not watched:
        return row
    near = in_words(g.near)
    return [
        *row,
        g.worst or "-",
        f"{min(g.height, 99):.1f}" if g.near else "",
        html.Img(src=bars([*g.near.values()]), alt=near, title=near) if g.near else "",
        html.Img(src=sparkline(g.recent), alt=f"now {g.height:.1f}" if g.near else "nothing recent"),
    ]


def _pages(run: int, many: int, start: int, asked: Mapping[str, str]) -> Component | None:
    """The ways to the rows before and after."""
    if many <= MOST:
        return None
    rest = {k: v for k, v in asked.items() if k != "from"}
    ways = [
        dcc.Link(words, href=link("run", run, **rest, **({"from": at} if at else {})))
        for at, words in ((start - MOST, f"The {MOST} before"), (start + MOST, f"The next {MOST}"))
        if 0 <= at < many
    ]
    return html.P([f"{start + 1} to {min(start + MOST, many)} of {many:,}. ", *(c for w in ways for c in (w, " "))])
