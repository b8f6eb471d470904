"""One client of a run: what each watch saw, in which layers, why it was flagged, its weight, its rejected replies."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import Dash, Input, Output, State, dcc, html
from dash.exceptions import PreventUpdate

from ...core.stats import robust_z
from ...core.types import RoundRecord
from ...core.words import number, printable, rounds_of
from ...figures import clients
from ...figures import guard as figures
from ...store.round import RoundStory
from ...store.story import rounds_by_note
from ..layout import GRAPH, aria, card, problem, table
from ..routes import link, query, read
from ..state import RunView, Workspace

REASONS = 5  # flagged rounds that are explained, the latest
WAYS = {"loss": "On the server's samples", "cosine": "Direction"}
PARTS = 12  # layers that are listed, the most unusual


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(
        Output("client", "children"),
        Input("version", "data"),
        Input("run-address", "search"),
        Input("dark", "data"),
        State("url", "pathname"),
    )
    def show(version: Any, asked: Any, dark: Any, path: Any) -> Any:
        page = read(path, asked)
        if version is None or asked is None or dark is None or page.run is None:
            raise PreventUpdate
        name = page.query.get("client")
        if name is None:
            return html.P("Choose a client in the picture or in the list to see it in full.", className="note")
        view = workspace.view(page.run)
        if name not in view.series.clients:
            return problem(f"No client “{name}” has taken part in this run so far")
        return sheet(view, name, asked, bool(dark))


def sheet(view: RunView, name: str, asked: Any, dark: bool) -> Any:
    """Everything about a client."""
    rest = {k: v for k, v in query(asked).items() if k != "client"}
    drawn = figures.client(view.series, name, dark).update_layout(uirevision=name, title_text="", margin_t=16)
    away = dcc.Link("Close", href=link("run", view.run.id, **rest), className="close")
    last = next((r for r in reversed(view.records) if name in r.client_ids), None)
    text = [reasons(view, name), takes_part(view, name), refused(view, name)]
    numbers = [] if last is None else [signals(last, name), parts(last, name)]
    figure = dcc.Graph(id="client-figure", figure=drawn, config=GRAPH)
    label = f"Scores and weight of client {printable(name)} by round"
    left = html.Div(
        [html.Div(figure, className="graph", role="group", **aria(label=label)), reported(view, name, dark)]
    )
    right = html.Div([*text, *numbers])
    return card(f"Client {name}", away, html.Div([left, right], className="halves"), id="client-card")


def reported(view: RunView, name: str, dark: bool) -> Any:
    """What it told of itself over rounds, where it did."""
    drawn = clients.told(view.series, name, dark)
    if drawn is None:
        return None
    drawn.update_layout(uirevision=name)
    figure = dcc.Graph(id="told-figure", figure=drawn, config=GRAPH)
    head = "What it reports, and how its replies arrive"
    return html.Div([html.H3(head), html.Div(figure, className="graph", role="group", **aria(label=head))])


def reasons(view: RunView, name: str) -> Any:
    """What became of it and the one reason, then what was seen of it in the last rounds in which it was flagged."""
    story, standing = view.story, view.story.clients[name].standing
    if standing is None:
        return html.P("No watch has flagged this client.")
    told = [f"{str(standing).capitalize()}: {story.reason(name)}."]
    told.append(story.harm_not_shown(name, None if view.run.state == "done" else view.run.id))
    flagged = [r for r in map(RoundStory, reversed(view.records)) if name in r.flagged or name in r.doubts]
    items = [
        html.Li([html.Strong(f"Round {r.record.round}, {r.states[name]}: "), printable(str(r.reason(name)))])
        for r in flagged[:REASONS]
    ]
    more = f"{len(flagged) - REASONS} more rounds in which it was flagged." if len(flagged) > REASONS else None
    shown = [html.P(printable(words)) for words in told if words]
    note = html.P(more, className="note") if more else None
    return html.Div([html.H3("Why"), *shown, html.Ul(items, className="reasons"), note])


def takes_part(view: RunView, name: str) -> Any:
    """How it answers, whether it helps the model, and whether what it tells of itself fits that; in words."""
    found = view.story.contribution(name)
    words = [f"It {view.story.health[name]}."]
    if found is not None:
        words.append(f"{WAYS[found.of]}: {found}.")
    if odd := view.story.at_odds(name):
        words.append(f"Contradiction: {odd}.")
    return html.Div([html.H3("How it takes part"), *(html.P(printable(w)) for w in words)])


def refused(view: RunView, name: str) -> Any:
    """Replies that were not let in, each reason with its rounds."""
    grouped = rounds_by_note(view.story.clients[name].rejected.items())
    items = [
        html.Li([html.Strong(f"{rounds_of(rounds).capitalize()}: "), printable(str(reason))])
        for reason, rounds in grouped.items()
    ]
    return html.Div([html.H3("Rejected replies"), html.Ul(items)]) if items else None


def signals(record: RoundRecord, name: str) -> Any:
    """What every watch measured in the client's last round."""
    i = record.client_ids.index(name)
    rows = [
        [
            w.name,
            number(float(w.signal[i])),
            number(float(w.scores[i])),
            number(w.threshold),
            "yes" if w.flagged[i] else "not judged" if w.scores[i] > w.threshold else "no",
        ]
        for w in record.watches
    ]
    caption = f"Signals in round {record.round}"
    return html.Div(
        [html.H3(caption), table(caption, ("watch", "signal", "score", "limit", "flagged"), rows, (1, 2, 3))]
    )


def parts(record: RoundRecord, name: str) -> Any:
    """The layers, or other parts, that make up its signals, the most unusual first."""
    i = record.client_ids.index(name)
    rows: list[tuple[float, list[Any]]] = []
    for watch in record.watches:
        for part, values in watch.parts.items():
            sound = np.isfinite(values)
            if sound[i]:
                height = float(robust_z(values[sound])[int(sound[:i].sum())])
                rows.append((height, [part, watch.name, number(float(values[i])), f"{np.clip(height, -999, 999):.1f}"]))
    if not rows:
        return None
    caption = f"Layers in round {record.round}"
    shown = [row for _, row in sorted(rows, key=lambda found: -found[0])[:PARTS]]
    heads = ("part", "watch", "value", "MADs above the median")
    return html.Div([html.H3(caption), table(caption, heads, shown, (2, 3))])
