"""One run: in words, clients x rounds, who is worst now, what the model learned, and one client in full."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ...core.words import number, printable
from ...figures import guard as figures
from ...figures.theme import empty as nothing
from ...figures.theme import labels
from ...report.summary import NAMED, tell
from ...store.overview import reasons
from ...store.record import RunRecord
from ...store.series import Series
from ..layout import Child, address, aria, card, empty, field, graph, heading, move, page, state, table
from ..routes import Page, link, query, read, search
from ..state import RunView, Workspace
from . import client as details

SCALES: tuple[figures.Scale, ...] = ("linear", "log", "robust z")
WORST = 12  # clients in the list


def show(asked: Page) -> list[Component]:
    scale = asked.query.get("scale", "")
    watch = dcc.Dropdown(id="watch", clearable=False, placeholder="no watch yet")
    scales = dcc.RadioItems(
        SCALES, scale if scale in SCALES else "linear", id="scale", inline=True, className="segmented"
    )
    tools = html.Div([field("Watch", watch, of="watch"), field("Colours", scales)], className="tools")
    return page(
        f"Run {asked.run}",
        address("run"),
        heading(f"Run {asked.run}", asked.run, "run"),
        html.Div(id="summary", className="summary", **aria(live="polite")),
        tools,
        html.Div(
            [
                graph("heatmap", "Scores of every client in every round", 420),
                card("Who is worst now", html.Div(id="worst")),
            ],
            className="wide-and-narrow",
        ),
        html.Div(id="client", **aria(live="polite")),
        html.Div(
            [
                graph("learning", "Accuracy and loss by round, with exclusions", 580),
                graph("scores", "Scores over rounds with the limit", 420),
            ],
            className="halves",
        ),
    )


def version(workspace: Workspace, asked: Page) -> str:
    run = workspace.run(asked.run or 0)
    return f"{run.created}:{run.state}:{run.rounds}"


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(
        Output("run-heading", "children"),
        Output("summary", "children"),
        Output("watch", "options"),
        Output("watch", "value"),
        Input("version", "data"),
        State("url", "pathname"),
        State("url", "search"),
        State("watch", "value"),
    )
    def head(version: object, path: object, asked: object, watch: object) -> object:
        watch = watch or query(asked).get("watch")
        view = _view(workspace, version, path, watch)
        names = list(view.watches)
        title = [f"Run {view.run.id}  {view.run.name} ", state(view.run.state)]
        return title, told(workspace, view), names, watch if watch in names else workspace.loudest(view.run.id)

    @app.callback(
        Output("heatmap", "figure"),
        Input("version", "data"),
        Input("watch", "value"),
        Input("scale", "value"),
        Input("dark", "data"),
        State("url", "pathname"),
    )
    def draw_heatmap(version: object, watch: object, scale: object, dark: object, path: object) -> object:
        view = _view(workspace, version, path, watch, dark)
        if not isinstance(watch, str) or watch not in view.series.watches:
            return nothing("", "this run has recorded no scores", bool(dark))
        chosen = next((s for s in SCALES if s == scale), SCALES[0])
        drawn = figures.heatmap(view.series, watch, chosen, bool(dark))
        return drawn.update_layout(uirevision=f"{path} {watch}")

    @app.callback(
        Output("learning", "figure"), Input("version", "data"), Input("dark", "data"), State("url", "pathname"),
        State("watch", "value"),
    )  # fmt: skip
    def draw_learning(version: object, dark: object, path: object, watch: object) -> object:
        view = _view(workspace, version, path, watch, dark)
        return figures.learning(view.series, bool(dark)).update_layout(uirevision=path)

    @app.callback(
        Output("scores", "figure"),
        Output("worst", "children"),
        Input("version", "data"),
        Input("watch", "value"),
        Input("run-address", "search"),
        Input("dark", "data"),
        State("url", "pathname"),
    )
    def draw_scores(version: object, watch: object, asked: object, dark: object, path: object) -> object:
        if asked is None:  # the address is not known yet
            raise PreventUpdate
        view = _view(workspace, version, path, watch, dark)
        if not isinstance(watch, str) or watch not in view.series.watches:
            return nothing("", "this run has recorded no scores", bool(dark)), empty("This run has recorded no scores.")
        chosen = query(asked).get("client")
        drawn = figures.scores(view.series, watch, (chosen,) if chosen in view.series.clients else (), bool(dark))
        return drawn.update_layout(uirevision=f"{path} {watch}"), ranking(view, watch, query(asked))

    @app.callback(
        Output("run-address", "search"),
        Input("watch", "value"),
        Input("scale", "value"),
        Input("heatmap", "clickData"),
        State("url", "pathname"),
        State("run-address", "search"),
        prevent_initial_call=True,
    )
    def steer(watch: object, scale: object, click: object, path: object, asked: object) -> object:
        """What is chosen is in the address, so that a link shows it again."""
        run, known = read(path).run, query(asked)
        if run is None or asked is None:
            raise PreventUpdate
        view = workspace.view(run, str(watch or ""))
        new = {**known, "scale": scale if scale in SCALES[1:] else None}
        if watch in view.watches:
            new["watch"] = watch if watch != workspace.loudest(run) else None
        clicked = clicked_client(click, view.series)
        if clicked is not None:
            new["client"] = clicked
        found = search(**new)
        return move(asked, found)

    details.register(app, workspace)


def told(workspace: Workspace, view: RunView) -> list[Component]:
    """The run in words."""
    gone = dict(list(view.series.excluded_in.items())[:NAMED])
    records = [workspace.record(view.run.id, t) for t in sorted(set(gone.values()))]
    sentences = tell(RunRecord(view.run, view.series, reasons=reasons(records, gone)))
    first, *others = map(printable, sentences)
    return [html.P(first, className="lead"), html.Ul([html.Li(s) for s in others])]


def ranking(view: RunView, watch: str, asked: dict[str, str]) -> html.Div:
    """The clients that come closest to the limit, or exceed it farthest."""
    rows: list[list[Child]] = []
    for place in worst(view.series, watch):
        here = aria(current="true") if asked.get("client") == place.client else {}
        href = link("run", view.run.id, **{**asked, "client": place.client})
        name = printable(place.client)
        shown = dcc.Link(name, href=href, title=f"Show client {name}")
        what = "suspended" if place.client in view.series.suspended else "excluded"
        gone = f"{what} in round {place.excluded_in}" if place.excluded_in else "over the limit" if place.over else ""
        rows.append([html.Span(shown, **here), number(place.score), number(place.limit), gone])
    return table("Clients, those closest to the limit first", ("client", "score", "limit", ""), rows, (1, 2))


class Place(NamedTuple):
    """Where a client stood in the last round that it took part in."""

    client: str
    round: int
    score: float
    limit: float
    over: bool
    excluded_in: int | None


def worst(series: Series, watch: str, most: int = WORST) -> list[Place]:
    """Clients by their last score, on a scale of 0 at the median client and 1 at the limit; highest first."""
    seen, gone = series.watches[watch], series.excluded_in
    there = np.isfinite(seen.scores)
    last = len(series) - 1 - there[::-1].argmax(axis=0)
    column = np.arange(len(series.clients))
    score, height = seen.scores[last, column], figures.to_limit(seen)[last, column]
    order = np.lexsort((-score, -np.nan_to_num(height, nan=-np.inf)))
    return [
        Place(
            series.clients[j],
            int(series.rounds[last[j]]),
            float(score[j]),
            float(seen.threshold[last[j]]),
            bool(seen.flagged[last[j], j]),
            gone.get(series.clients[j]),
        )
        for j in order
        if there[:, j].any()
    ][:most]


def clicked_client(click: Any, series: Series) -> str | None:
    """The client of a clicked cell or cross; a browser may send anything."""
    try:
        point = click["points"][0]
        if "customdata" not in point:
            return series.clients[labels(series.clients).index(point["y"])]
        cell = point["customdata"]  # a typed array, which JSON makes a table by position
        place = int(cell["2"] if isinstance(cell, dict) else cell[2])
        return series.clients[place] if 0 <= place < len(series.clients) else None
    except (TypeError, KeyError, IndexError, ValueError, OverflowError):
        return None


def _view(workspace: Workspace, version: object, path: object, watch: object, dark: object = False) -> RunView:
    run = read(path).run
    if version is None or dark is None or run is None:
        raise PreventUpdate
    return workspace.view(run, str(watch or ""))
