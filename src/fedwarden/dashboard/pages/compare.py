"""Two runs side by side."""

from __future__ import annotations

import json

from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from ...core.words import percent
from ...figures import guard as figures
from ...store.record import RunRecord
from .. import layout as ui
from ..routes import Page, link, number, query, search
from ..state import Workspace

ENDS = ("first", "second")


def show(_: Page) -> list[Component]:
    ends = [ui.field(f"{end.title()} run", dcc.Dropdown(id=end, clearable=False), of=end) for end in ENDS]
    return ui.page(
        "Compare",
        ui.address("compare"),
        ui.heading("Two runs side by side"),
        html.Div(ends, className="tools"),
        html.Div(id="facts", **ui.aria(live="polite")),
        ui.graph("both", "Accuracy of both runs, and the clients left out", 520),
    )


def version(workspace: Workspace, _: Page) -> str:
    return json.dumps(workspace.briefs())


def register(app: Dash, workspace: Workspace) -> None:
    where = Input("compare-address", "search")

    @app.callback([Output(end, part) for part in ("options", "value") for end in ENDS], ui.VERSION, where)
    def choices(version: object, asked: object) -> object:
        ui.wait_for(version, asked)
        options = [{"value": r["run"], "label": f"{r['run']}  {r['name']}"} for r in workspace.briefs()]
        return options, options, *(number(query(asked).get(end)) for end in ENDS)

    @app.callback(
        Output("compare-address", "search"), *(Input(end, "value") for end in ENDS), State("version", "data"),
        State("compare-address", "search"),
    )  # fmt: skip
    def choose(first: object, second: object, version: object, asked: object) -> object:
        found = search(first=number(first), second=number(second))
        return no_update if version is None or not found else ui.move(asked, found)

    @app.callback(Output("facts", "children"), Output("both", "figure"), ui.VERSION, where, ui.DARK)
    def draw(version: object, asked: object, dark: object) -> object:
        ui.wait_for(version, asked, dark)
        numbers = [number(query(asked).get(k)) for k in ENDS]
        if None in numbers:
            return ui.empty("Choose two runs."), no_update
        first, second = (workspace.view(n, "") for n in numbers if n is not None)
        names = (f"{first.run.id} {first.run.name}", f"{second.run.id} {second.run.name}")
        drawn = figures.compare(first.series, second.series, names, bool(dark))
        return facts(workspace, first, second), drawn.update_layout(uirevision=str(numbers))


def facts(workspace: Workspace, first: RunRecord, second: RunRecord) -> html.Div:
    """What both runs were and came to."""
    briefs = {row["run"]: row for row in workspace.briefs()}
    rows = [briefs[v.run.id] for v in (first, second)]
    body = [
        ["state", *(ui.state(r["state_in_words"]) for r in rows)],
        ["engine", *(r["engine"] for r in rows)],
        ["preset", *(r["preset"] or "-" for r in rows)],
        ["rounds", *(str(r["rounds"]) for r in rows)],
        ["clients", *(str(len(v.series.clients)) for v in (first, second))],
        ["accuracy", *(percent(r["accuracy"]) for r in rows)],
        ["verdict", *(v.story.short for v in (first, second))],
    ]
    heads: list[ui.Child] = ["", *(dcc.Link(f"{r['run']}  {r['name']}", href=link("run", r["run"])) for r in rows)]
    return ui.table("Both runs", heads, body)
