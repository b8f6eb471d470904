"""One client of a run: what each watch saw, in which layers, why it was flagged, its weight, its rejected replies."""

from __future__ import annotations

from typing import Any

import numpy as np
from dash import Dash, Output, dcc, html

from ...core.stats import robust_z
from ...core.types import RoundRecord
from ...core.words import number, printable, rounds_of
from ...figures import clients
from ...figures import guard as figures
from ...store.record import RunRecord
from ...store.round import RoundStory
from ...store.story import rounds_by_note
from ..layout import DARK, GRAPH, PATH, QUERY, VERSION, aria, card, heading, page, problem, run_of, table
from ..routes import Page, query
from ..state import Workspace
from . import run

REASONS = 3  # flagged rounds that are explained, the latest
WAYS = {"loss": "On the server's samples", "cosine": "Direction"}
PARTS = 12  # layers that are listed, the most unusual


def show(asked: Page) -> list[Any]:
    title = f"Run {asked.run}"
    return page(title, heading(title, asked.run, "client"), html.Div(id="client", **aria(live="polite")))


def version(workspace: Workspace, asked: Page) -> str:
    return f"{run.version(workspace, asked)}:{asked.query.get('name')}"


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(Output("client", "children"), VERSION, DARK, PATH, QUERY)
    def draw(version: Any, dark: Any, path: Any, asked: Any) -> Any:
        number, name = run_of(path, version, asked, dark), query(asked).get("name", "")
        view = workspace.view(number)
        if name not in view.series.clients:
            return problem(f"No client “{name}” has taken part in this run so far")
        return sheet(view, name, bool(dark))


def sheet(view: RunRecord, name: str, dark: bool) -> Any:
    """Everything about a client."""
    took = view.series.rounds[~np.isnan(view.series.weights[:, view.series.clients.index(name)])]
    last = view.story.full(int(took[-1])) if len(took) else None
    text = [reasons(view, name), takes_part(view, name), refused(view, name)]
    numbers = [] if last is None else [signals(last, name), parts(last, name)]
    scores = figures.client(view.series, name, dark).update_layout(title_text="", margin_t=16)
    left: list[Any] = [_drawn("client-figure", scores, f"Scores and weight of client {printable(name)} by round", name)]
    if (told := clients.told(view.series, name, dark)) is not None:
        head = "What it reports, and how its replies arrive"
        left += [html.H3(head), _drawn("told-figure", told, head, name)]
    return card(f"Client {name}", html.Div([html.Div(left), html.Div([*text, *numbers])], className="halves"),
                id="client-card")  # fmt: skip


def _drawn(id: str, figure: Any, label: str, name: str) -> html.Div:
    shown = dcc.Graph(id=id, figure=figure.update_layout(uirevision=name), config=GRAPH)
    return html.Div(shown, className="graph", role="group", **aria(label=label))


def reasons(view: RunRecord, name: str) -> Any:
    """What became of it and the one reason, then what was seen of it in the last rounds in which it was flagged."""
    if not (told := view.story.told(name, None if view.run.state == "done" else view.run.id)):
        return html.P("No watch has flagged this client.")
    flagged = view.series.noted(name)
    seen = (RoundStory(view.story.full(t)) for t in flagged[: -REASONS - 1 : -1])
    items = [html.Li(printable(words)) for r in seen if not told.startswith(words := str(r.reason(name)))]
    more = f"{len(flagged) - REASONS} more rounds in which it was flagged." if len(flagged) > REASONS else None
    note = html.P(more, className="note") if more else None
    return html.Div([html.H3("Why"), html.P(printable(told)), html.Ul(items, className="reasons"), note])


def takes_part(view: RunRecord, name: str) -> Any:
    """How it answers, whether it helps the model, and whether what it tells of itself fits that; in words."""
    found = view.story.contribution(name)
    words = [f"It {view.story.health[name]}."]
    if found is not None:
        words.append(f"{WAYS[found.of]}: {found}.")
    if same := clients.unchanged(view.series, name):
        told = ", ".join(f"{k.replace('_', ' ')} {number(v)}" for k, v in same.items())
        words.append(f"It reported the same in every round: {told}.")
    if odd := view.story.at_odds(name):
        words.append(f"Contradiction: {odd}.")
    return html.Div([html.H3("How it takes part"), *(html.P(printable(w)) for w in words)])


def refused(view: RunRecord, name: str) -> Any:
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
    rows = []
    for w in record.watches:
        flagged = "yes" if w.flagged[i] else "not judged" if w.scores[i] > w.threshold else "no"
        rows.append([w.name, number(float(w.signal[i])), number(float(w.scores[i])), number(w.threshold), flagged])
    caption, heads = f"Signals in round {record.round}", ("watch", "signal", "score", "limit", "flagged")
    return html.Div([html.H3(caption), table(caption, heads, rows, (1, 2, 3))])


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
