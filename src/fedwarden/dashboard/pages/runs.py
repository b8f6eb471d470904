"""The runs of the workspace: their state as it changes, a filter, and two to compare."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dash import ALL, Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component

from ...core.words import percent, printable
from ..layout import VERSION, Child, address, aria, empty, field, heading, page, state, table, wait_for
from ..routes import Page, link, query
from ..state import Workspace

HEADS = {
    "run": "run", "name": "name", "state": "state", "rounds": "rounds", "engine": "engine", "preset": "preset",
    "accuracy": "accuracy", "verdict": "verdict", "started": "created",
}  # fmt: skip
"""The heads of the columns, and what rows are sorted by."""
UPWARDS = ("name", "state", "engine", "preset", "verdict")  # where the first click sorts from a to z
SEARCHED = ("run", "name", "state", "engine", "preset")
ROWS = 200  # the filter finds the others


def show(asked: Page) -> list[Component]:
    find = dcc.Input(
        asked.query.get("filter", ""), id="filter", type="search", placeholder="name, state or preset",
        autoComplete="off",
    )  # fmt: skip
    tools = html.Div([field("Filter", find, of="filter"), html.Div(id="compare")], className="tools")
    return page("Runs", address("runs"), heading("Runs"), tools, html.Div(id="runs", **aria(live="polite")))


def version(workspace: Workspace, _: Page) -> str:
    return json.dumps(workspace.briefs())


def register(app: Dash, workspace: Workspace) -> None:
    picks = {"type": "pick", "run": ALL}

    @app.callback(
        Output("runs", "children"), VERSION, Input("filter", "value"), Input("runs-address", "search"),
        State(picks, "value"),
    )  # fmt: skip
    def rows(version: object, text: object, asked: object, picked: object) -> object:
        wait_for(version)
        return listing(workspace.briefs(), str(text or ""), _chosen(picked), query(asked).get("sort", ""))

    @app.callback(Output("compare", "children"), Input(picks, "value"))
    def offer(picked: object) -> object:
        chosen = _chosen(picked)
        if len(chosen) != 2:
            return html.Span("Tick two runs to compare them.", className="note")
        first, second = sorted(chosen)
        href = link("compare", first=first, second=second)
        return dcc.Link(f"Compare runs {first} and {second}", href=href, className="button")


def listing(
    rows: Sequence[Mapping[str, Any]], text: str, chosen: Sequence[int], sort: str = ""
) -> html.Div | list[Child]:
    """The runs whose words have the text in them, by the column ``sort``, downwards behind a minus sign."""
    if not rows:
        return empty(
            "No run has been recorded in this workspace yet.",
            ["Start with ", html.Code("fedwarden demo"), "; its rounds appear here as they come."],
        )
    words = text.lower().split()
    found = [r for r in rows if all(any(w in str(r[k]).lower() for k in SEARCHED) for w in words)]
    if not found:
        return empty(f"None of {len(rows)} runs has “{text}” in its name, state, engine or preset.")
    column, down = sort.removeprefix("-"), sort.startswith("-")
    if column in HEADS:
        known = [r for r in found if r[HEADS[column]] is not None]
        known.sort(key=lambda r: r[HEADS[column]], reverse=down)
        found = [*known, *(r for r in found if r[HEADS[column]] is None)]
    heads: list[Child] = [*(_head(name, sort or "-run") for name in HEADS), "compare"]
    shown = table("Runs", heads, [_row(r, chosen) for r in found[:ROWS]], numeric=(0, 3, 6))
    more = html.P(f"{len(found) - ROWS} more; narrow them down with the filter.") if len(found) > ROWS else None
    return [shown, more]


def _head(name: str, sort: str) -> Component:
    """A link that sorts by this column, and the other way round where it is sorted so."""
    other = f"-{name}" if sort == name or (sort != f"-{name}" and name not in UPWARDS) else name
    arrow = {name: " ▲", f"-{name}": " ▼"}.get(sort, "")
    return dcc.Link(f"{name}{arrow}", href=link("runs", sort=other), title=f"Sort by {name}")


def _row(row: Mapping[str, Any], chosen: Sequence[int]) -> list[Child]:
    number = row["run"]
    label = html.Span(f"Compare run {number}", className="hidden")
    tick = dcc.Checklist(
        [{"label": label, "value": number}], [number] if number in chosen else [], id={"type": "pick", "run": number}
    )
    badge, there = state(row["state_in_words"]), link("run", number)
    return [
        dcc.Link(str(number), href=there),
        html.Span([dcc.Link(row["name"], href=there, title=row["name"]), html.Span(badge, className="narrow")]),
        badge,
        f"{row['rounds']} of {row['of']}" if row["of"] else str(row["rounds"]),
        row["engine"],
        row["preset"] or "-",
        percent(row["accuracy"]),
        html.Span(printable(row["error"] or row["verdict"]), title=printable(row["error"] or row["verdict"])),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(row["created"])),
        tick,
    ]


def _chosen(picked: object) -> list[int]:
    """The runs that are ticked, from what a browser sent."""
    lists = [p for p in picked if isinstance(p, list)] if isinstance(picked, list) else []
    return [n for found in lists for n in found if isinstance(n, int)]
