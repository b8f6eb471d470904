"""What all pages share: the frame, cards, tables, links, and what is said where there is nothing to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Input, State, dcc, html, no_update
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ..core.words import printable
from ..figures.theme import CONFIG
from .routes import link, query, read, search

Child = str | int | float | Component | None
"""What a part of a page may hold."""

FAILED = "This could not be shown. "
STALE = "This page could not be updated, and tries again. "
TICK = 1000  # milliseconds from an answer to the next look for new rounds
LOST = 20_000  # milliseconds after which a look that has no answer is tried again
GRAPH: Any = CONFIG
CLEAR = "rgba(0, 0, 0, 0)"
BLANK = {
    "layout": {"xaxis": {"visible": False}, "yaxis": {"visible": False}, "paper_bgcolor": CLEAR, "plot_bgcolor": CLEAR}
}
VERSION, DARK = Input("version", "data"), Input("dark", "data")
PATH, QUERY = State("url", "pathname"), State("url", "search")
TABS = {"run": "Overview", "what-if": "What if", "audit": "Audit"}
THEMES = {"system": "System", "light": "Light", "dark": "Dark"}


def aria(**values: str) -> dict[str, Any]:
    """What a screen reader is told of a part.

    >>> aria(label="Main")
    {'aria-label': 'Main'}
    """
    return {f"aria-{name}": value for name, value in values.items()}


def frame(folder: str) -> html.Div:
    """The head of every page, and the place where pages go."""
    top = [
        dcc.Link("fedwarden", href=link("runs"), className="brand"),
        html.Nav([dcc.Link("Runs", href=link("runs"))], **aria(label="Main")),
        html.Span(folder, className="folder", title="The workspace that is shown"),
        dcc.RadioItems(THEMES, "system", id="theme", inline=True, persistence=True, className="segmented"),
    ]
    skip = html.A("Skip to the content", href="#page", className="skip")
    stores = [dcc.Location(id="url"), dcc.Store(id="dark"), dcc.Store(id="scheme")]
    return html.Div([*stores, skip, html.Header(top, className="top"), html.Main(id="page", tabIndex="-1")])


def page(title: str, *children: Component) -> list[Component]:
    """A page with what keeps it live: a clock, the version that is shown, and a place for problems."""
    return [
        dcc.Interval(id="tick", interval=TICK),
        dcc.Store(id="version"),
        dcc.Store(id="title", data=title),
        html.Span(id="titled", hidden=True),
        html.Div(id="problem", role="alert"),
        html.Div(id="failure", role="alert"),
        html.Div(children, id="body", className="unread"),
    ]


def wait_for(*needed: object) -> None:
    """Change nothing until all this is known; a browser sends nothing for what is still missing."""
    if None in needed:
        raise PreventUpdate


def run_of(path: object, *needed: object) -> int:
    """The run of an address, once all that a page needs is known."""
    wait_for(*needed, read(path).run or None)
    return read(path).run


def address(kind: str) -> dcc.Location:
    """Where a page writes what is chosen on it; each has its own, as a callback needs all its parts on one page."""
    return dcc.Location(id=f"{kind}-address", refresh=False)


def move(asked: object, found: str) -> object:
    """Another query for a page's address; nothing where it is the same, or where the address is not known yet."""
    return no_update if asked is None or found == search(**query(asked)) else found


def heading(title: str, run: int = 0, kind: str = "") -> html.Div:
    """A page's title; of a run, with the pages of that run. The run's name and state follow."""
    tabs = [
        dcc.Link(text, href=link(tab, run), className="subpage here" if tab == kind else "subpage")
        for tab, text in (TABS.items() if run else ())
    ]
    ways = [html.Nav(tabs, className="subpages", **aria(label="This run"))] if run else []
    return html.Div([html.H1(title, id="heading"), *ways], className="heading")


def card(title: str, *children: Child, note: str = "", **attributes: Any) -> html.Section:
    """A titled part of a page."""
    head = [html.H2(printable(title)), *([html.P(note, className="note")] if note else [])]
    return html.Section([*head, *children], className="card", **attributes)


def graph(id: str, label: str, height: int = 380, hidden: bool = False) -> html.Section:
    """A card for a figure, which brings its own title; the height keeps the page still until it is drawn."""
    made = dcc.Graph(id=id, figure=BLANK, config=GRAPH, style={"minHeight": height})
    parts = [html.H2(label, className="hidden"), made]
    return html.Section(parts, className="card graph", id=f"{id}-part", hidden=hidden)


def field(label: str, control: Component, *, of: str | None = None) -> html.Div:
    """A control with its label; a group, as Dash names some controls by their value alone."""
    return html.Div([html.Label(label, htmlFor=of), control], className="field", role="group", **aria(label=label))


def table(
    caption: str, heads: Sequence[Child], rows: Sequence[Sequence[Child]], numeric: Sequence[int] = ()
) -> html.Div:
    """A table that scrolls by itself on a narrow screen; a row's first cell is its head."""
    style = ["number" if i in numeric else "" for i in range(len(heads))]

    def line(row: Sequence[Child]) -> html.Tr:
        first, *rest = [printable(cell) if isinstance(cell, str) else cell for cell in row]
        cells = [html.Td(cell, className=name) for cell, name in zip(rest, style[1:], strict=True)]
        return html.Tr([html.Th(first, scope="row", className=style[0]), *cells])

    head = html.Tr([html.Th(h, scope="col", className=style[i]) for i, h in enumerate(heads)])
    body = [line(row) for row in rows]
    shown = html.Table([html.Caption(caption, className="hidden"), html.Thead(head), html.Tbody(body)])
    return html.Div(shown, className="scroll", tabIndex="0", role="region", **aria(label=caption))


def state(text: str) -> html.Span:
    """The state of a run in words, as a badge."""
    return html.Span(text, className=f"badge {text.split()[0]}")


def empty(title: str, *hints: Child | Sequence[Child]) -> html.Div:
    """What is said where there is nothing to show, and what to do about it."""
    return html.Div([html.P(title, className="lead"), *(html.P(hint) for hint in hints)], className="empty")


def nowhere() -> list[Component]:
    """What is shown at an address that leads to no page."""
    back = dcc.Link("The runs of this workspace", href=link("runs"))
    return page("Not found", heading("There is no such page"), empty("This address leads nowhere.", back))


def problem(text: str, head: str = FAILED) -> html.Div:
    """What is wrong, and where to go."""
    words = printable(f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'} ")
    return html.Div([html.Strong(head), words, dcc.Link("See all runs.", href=link("runs"))], className="problem")
