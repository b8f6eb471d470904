"""What participants could read in the shared model of one run: values, trend, what chance explains, alarms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ...core.types import Observation
from ...core.words import number, printable
from ...figures import audit as figures
from .. import layout as ui
from ..routes import Page, query, search
from ..state import Workspace

ALARMS = 100  # rows


def show(asked: Page) -> list[Component]:
    tools = [
        ui.field(label, dcc.Dropdown(id=id, clearable=False), of=id)
        for id, label in (("observer", "Seen by"), ("source", "Source"))
    ]
    shown = [
        html.Div(tools, className="tools"),
        ui.graph("leakage", "What the shared model shows by round, with trend and alarms"),
        ui.card("Alarms", html.Div(id="alarms", **ui.aria(live="polite"))),
    ]
    return ui.page(
        f"Audit, run {asked.run}",
        ui.address("audit"),
        ui.heading(f"Run {asked.run}", asked.run, "audit"),
        html.Div(id="no-audit"),
        html.Div(shown, id="audit", hidden=True),
    )


def version(workspace: Workspace, asked: Page) -> str:
    run = workspace.run(asked.run)
    counts = [f"{o}={len(workspace.observations(run.id, o))}" for o in workspace.observers(run.id)]
    return f"{run.created}:{' '.join(counts)}"


def register(app: Dash, workspace: Workspace) -> None:
    observed = Input("observer", "value")
    controls = [Output(control, part) for control in ("observer", "source") for part in ("options", "value")]

    @app.callback([Output("no-audit", "children"), Output("audit", "hidden"), *controls], ui.VERSION, observed,
                  State("source", "value"), ui.PATH, ui.QUERY)  # fmt: skip
    def choices(version: object, observer: object, source: object, path: object, asked: object) -> object:
        run = ui.run_of(path, version)
        observers = workspace.observers(run)
        if not observers:
            return nothing(), True, [], None, [], None
        observer, source = observer or query(asked).get("observer"), source or query(asked).get("source")
        chosen = observer if observer in observers else observers[0]
        seen = workspace.observations(run, chosen)
        keys = sources(seen)
        offers = [{"value": o, "label": o or "the observer"} for o in observers]
        offered = [{"value": k, "label": name(k)} for k in keys]
        return [], False, offers, chosen, offered, source if source in keys else surest(seen)

    @app.callback(
        Output("leakage", "figure"), Output("alarms", "children"), Output("audit-address", "search"),
        ui.VERSION, observed, Input("source", "value"), ui.DARK, ui.PATH, State("audit-address", "search"),
    )  # fmt: skip
    def draw(version: object, observer: Any, source: Any, dark: object, path: object, asked: object) -> object:
        run = ui.run_of(path, version, dark)
        seen = workspace.observations(run, observer) if observer in workspace.observers(run) else []
        if source not in sources(seen):
            raise PreventUpdate
        what, metric, layer = source.split("/", 2)
        drawn = figures.leakage(seen, what, metric, layer, bool(dark)).update_layout(uirevision=source)
        found = search(**{**query(asked), "observer": observer, "source": source})
        return drawn, alarms(seen), ui.move(asked, found)


def sources(seen: Sequence[Observation]) -> list[str]:
    """What was observed, in the order of the first round; those of the whole model first."""
    return sorted(dict.fromkeys(map(_key, seen)), key=lambda key: not key.endswith("/"))


def surest(seen: Sequence[Observation]) -> str | None:
    """The source with the alarm that chance explains least; the first source where there is no alarm."""
    alarmed = [o for o in seen if o.alarm]
    return _key(min(alarmed, key=lambda o: o.p)) if alarmed else next(iter(sources(seen)), None)


def name(key: str) -> str:
    """A source in words.

    >>> name("outputs/mean_logits/"), name("weights/cosine/fc1")
    ('outputs, mean logits', 'weights, cosine, fc1')
    """
    source, metric, layer = key.split("/", 2)
    return f"{source}, {metric.replace('_', ' ')}" + (f", {layer}" if layer else "")


def alarms(seen: Sequence[Observation]) -> Component:
    """Every alarm, the latest first and of a round the surest, with the classes that moved."""
    found = sorted((o for o in seen if o.alarm), key=lambda o: (-o.round, o.p))
    if not found:
        rounds = max(o.round for o in seen)
        return html.P(f"None in {rounds} rounds: nothing departed from its past more than chance explains.")
    rows = []
    for o in found[:ALARMS]:
        moved = printable(", ".join(o.moved())) or "-"
        rows.append([str(o.round), name(_key(o)), number(o.value), number(o.expected), f"{o.p:.2g}", moved])
    heads = ("round", "source", "measured", "expected", "chance", "classes that moved")
    return ui.table("Alarms, latest first", heads, rows, (0, 2, 3, 4))


def nothing() -> html.Div:
    return ui.empty(
        "No audit has been recorded in this run.",
        ["A participant records one with ", html.Code("fedwarden.flower.audit_mod"), " on its own machine; the ledger "
         "that it writes there is shown here."],
        ["What a planned change would show is answered by ", html.Code("fedwarden audit"), "."],
    )  # fmt: skip


def _key(o: Observation) -> str:
    return f"{o.source}/{o.metric}/{o.layer}"
