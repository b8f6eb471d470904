"""One run: in words, its clients, clients x rounds, and what the model learned."""

from __future__ import annotations

from typing import Any

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.development.base_component import Component

from ...core.errors import FedwardenError
from ...core.words import printable
from ...figures import clients as similar
from ...figures import guard as figures
from ...figures.heatmap import Scale
from ...figures.theme import empty as nothing
from ...figures.theme import labels
from ...report.summary import tell
from ...store.record import RunRecord
from ...store.series import Series
from .. import layout as ui
from ..routes import Page, link, query, search
from ..state import Workspace
from . import glance

SCALES: tuple[Scale, ...] = ("limit", "linear", "log", "robust z")
WATCH, CHOSEN = Input("watch", "value"), State("watch", "value")
PARTS = ("glance-part", "watched", "scores-part", "learning-part", "similar-part")


def show(asked: Page) -> list[Component]:
    scale = asked.query.get("scale", "")
    watch = dcc.Dropdown(id="watch", clearable=False, placeholder="no watch yet")
    scale = scale if scale in SCALES else SCALES[0]
    scales = dcc.RadioItems(SCALES, scale, id="scale", inline=True, className="segmented")
    tools = html.Div([ui.field("Watch", watch, of="watch"), ui.field("Colours", scales)], className="tools")
    pictures = [
        ui.graph("scores", "Scores over rounds with the limit", 420, hidden=True),
        ui.graph("similar", "A map of the clients by the directions of their updates", 460, hidden=True),
        ui.graph("learning", "Accuracy and loss by round, with exclusions", 580, hidden=True),
    ]
    heatmap = ui.graph("heatmap", "Scores of every client in every round", 420)
    return ui.page(
        f"Run {asked.run}",
        ui.address("run"),
        dcc.Location(id="way", refresh="callback-nav"),
        ui.heading(f"Run {asked.run}", asked.run, "run"),
        html.Div(id="summary", className="summary", **ui.aria(live="polite")),
        glance.part(),
        html.Div([tools, heatmap], id="watched", hidden=True),
        html.Div(pictures, className="halves", id="pictures"),
    )


def version(workspace: Workspace, asked: Page) -> str:
    run = workspace.run(asked.run)
    seen = "" if run.rounds else [len(workspace.observations(run.id, who)) for who in workspace.observers(run.id)]
    return f"{run.created}:{run.state}:{run.rounds}:{seen}:{len(workspace.said(run.id))}"


def register(app: Dash, workspace: Workspace) -> None:
    def view_of(path: object, watch: object, *needed: object) -> RunRecord:
        return workspace.view(ui.run_of(path, *needed), str(watch or ""))

    first = [Output("summary", "children"), Output("watch", "options"), Output("watch", "value")]

    @app.callback([*first, *(Output(part, "hidden") for part in PARTS)], ui.VERSION, ui.PATH, ui.QUERY, CHOSEN)
    def head(version: object, path: object, asked: object, watch: object) -> object:
        watch = watch or query(asked).get("watch")
        view = view_of(path, watch, version)
        names = list(view.story.watches)
        shown = watch if watch in names else workspace.loudest(view.run.id)
        nobody, learned = not view.series.clients, figures.learned(view.series)
        hidden = (nobody, not names, not names, not learned, not similar.has_map(view.series))
        try:
            words = told(view)
        except FedwardenError as error:  # of the configuration, without which the rest can be shown
            words = [ui.problem(str(error))]
        return words, names, shown, *hidden

    @app.callback(Output("heatmap", "figure"), ui.VERSION, WATCH, Input("scale", "value"), ui.DARK, ui.PATH)
    def draw_heatmap(version: object, watch: Any, scale: object, dark: object, path: object) -> object:
        view = view_of(path, watch, version, dark)
        if watch not in view.series.watches:
            return nothing("", "this run has recorded no scores", bool(dark))
        chosen = next((s for s in SCALES if s == scale), SCALES[0])
        return figures.heatmap(view.series, watch, chosen, bool(dark)).update_layout(uirevision=f"{path} {watch}")

    @app.callback(Output("learning", "figure"), ui.VERSION, ui.DARK, ui.PATH, CHOSEN)
    def draw_learning(version: object, dark: object, path: object, watch: object) -> object:
        view = view_of(path, watch, version, dark)
        return figures.learning(view.series, bool(dark)).update_layout(uirevision=path)

    @app.callback(Output("scores", "figure"), ui.VERSION, WATCH, ui.DARK, ui.PATH)
    def draw_scores(version: object, watch: Any, dark: object, path: object) -> object:
        view = view_of(path, watch, version, dark)
        if watch not in view.series.watches:
            return nothing("", "this run has recorded no scores", bool(dark))
        drawn = figures.scores(view.story, watch, (), bool(dark))
        return drawn.update_layout(uirevision=f"{path} {watch}")

    @app.callback(Output("similar", "figure"), ui.VERSION, ui.DARK, ui.PATH, CHOSEN)
    def draw_map(version: object, dark: object, path: object, watch: object) -> object:
        view = view_of(path, watch, version, dark)
        return similar.similarity(view.story, None, bool(dark)).update_layout(uirevision=path)

    @app.callback(Output("way", "href"), Input("heatmap", "clickData"), Input("similar", "clickData"), ui.PATH, CHOSEN,
                  prevent_initial_call=True)  # fmt: skip
    def go(cell: object, point: object, path: object, watch: object) -> object:
        """The page of the client that was clicked."""
        view = view_of(path, watch)
        found = clicked_client(point if ctx.triggered_id == "similar" else cell, view.series)
        return no_update if found is None else link("client", view.run.id, name=found)

    @app.callback(Output("run-address", "search"), WATCH, Input("scale", "value"), ui.PATH,
                  State("run-address", "search"), prevent_initial_call=True)  # fmt: skip
    def steer(watch: object, scale: object, path: object, asked: object) -> object:
        """What is chosen is in the address, so that a link shows it again."""
        view = view_of(path, watch, asked)
        new = {**query(asked), "scale": scale if scale in SCALES[1:] else None}
        if watch in view.story.watches:
            new["watch"] = watch if watch != workspace.loudest(view.run.id) else None
        return ui.move(asked, search(**new))

    glance.register(app, workspace)


def told(view: RunRecord) -> list[Component | None]:
    """The run in words."""
    first, *others = map(printable, tell(view))
    audit = dcc.Link("What the audit saw by round, and its alarms", href=link("audit", view.run.id))
    return [
        html.P(first, className="lead"),
        html.Ul([html.Li(s) for s in others]),
        html.P(audit) if view.observations else None,
    ]


def clicked_client(click: Any, series: Series) -> str | None:
    """The client of a clicked cell or cross; a browser may send anything."""
    try:
        point = click["points"][0]
        if "customdata" not in point:
            return series.clients[labels(series.clients).index(point["y"])]
        cell = point["customdata"]  # a typed array, which JSON makes a table by position; its last is the client's
        place = int(cell[str(len(cell) - 1)] if isinstance(cell, dict) else cell[-1])
        return series.clients[place] if 0 <= place < len(series.clients) else None
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return None
