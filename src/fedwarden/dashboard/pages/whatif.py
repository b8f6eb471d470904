"""What if: another rule, history or policy on the recorded signals, and which exclusions change."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dash import ALL, MATCH, Dash, Input, Output, State, ctx, dcc, html

from ... import sim
from ...core.errors import FedwardenError
from ...core.notes import Note
from ...core.registry import lookup, names, parameters, summary
from ...core.words import count, printable
from ...guard.config import spell_guard
from ...sim.recorded import truth_of
from ...store.record import RunRecord
from ...store.story import distinct_notes
from .. import layout as ui
from ..routes import Page, query, search
from ..state import Workspace

PARTS = {"rule": "Rule", "history": "History", "policy": "Policy"}
AS_RECORDED = "as recorded"
NOTHING = "No client is excluded or in doubt either way."
CAPTION = "Clients that are excluded or in doubt, before and after"
ROWS = 200  # of clients
JUDGING = Lock()  # who asks the same meanwhile waits for the answer in place of computing it again
Settings = tuple[str, ...]


def show(asked: Page) -> list[Any]:
    spinner = html.P("Deciding again, round by round…", className="badge running", role="status")
    note = (
        "Decides again from the recorded signals, at once and without training. The model, and what the clients sent, "
        "stay those of the recorded run."
    )
    controls = html.Div([_part(part, label, asked.query) for part, label in PARTS.items()], className="thirds")
    return ui.page(
        f"What if, run {asked.run}",
        ui.address("what-if"),
        ui.heading(f"Run {asked.run}", asked.run, "what-if"),
        ui.card("Another guard", controls, note=note),
        dcc.Loading(html.Div(id="verdict", **ui.aria(live="polite")), delay_show=300, custom_spinner=spinner),
    )


def version(workspace: Workspace, asked: Page) -> str:
    run = workspace.run(asked.run)
    return f"{run.created}:{run.state}:{bool(run.rounds)}"


def register(app: Dash, workspace: Workspace) -> None:
    part, option = {"type": "part", "part": ALL}, {"type": "option", "part": ALL, "name": ALL}
    one = {"part": MATCH}

    @app.callback(Output({"type": "options", **one}, "children"), Input({"type": "part", **one}, "value"), ui.QUERY)
    def offer(name: Any, asked: Any) -> Any:
        part = ctx.outputs_grouping["id"]["part"]
        return options(part, name, query(asked)) if part in PARTS and name in names(part) else []

    @app.callback(
        Output("verdict", "children"), Output("what-if-address", "search"), ui.VERSION, Input(part, "value"),
        Input(option, "value"), State(part, "id"), State(option, "id"), ui.PATH, State("what-if-address", "search"),
    )  # fmt: skip
    def decide(version: Any, chosen: Any, values: Any, parts: Any, places: Any, path: Any, asked: Any) -> Any:
        run = ui.run_of(path, version)
        wanted = {p["part"]: name for p, name in zip(parts, chosen, strict=True)}
        given = {f"{p['part']}.{p['name']}": value for p, value in zip(places, values, strict=True)}
        kept = chosen_parts(wanted, given)
        return verdict(workspace, workspace.view(run, ""), settings(kept)), ui.move(asked, search(**kept))


def chosen_parts(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, str]:
    """The components that were chosen and their options, as an address holds them; what is unknown is left out."""
    kept = {}
    for part, name in wanted.items():
        if part in PARTS and name in names(part):
            kept[part] = name
            for option, default in parameters(lookup(part, name)).items():
                value = given.get(f"{part}.{option}")
                if isinstance(value, str | int | float) and _shown(value) not in ("", *_spelled(default)):
                    kept[f"{part}.{option}"] = _shown(value)
    return kept


def settings(kept: Mapping[str, str]) -> Settings:
    """The same as settings of a guard."""
    return tuple(f"{key}={value}" for key, value in kept.items())


def verdict(workspace: Workspace, view: RunRecord, chosen: Settings) -> Any:
    """What the other guard would have decided, in words and by client."""
    if not view.run.rounds:
        return ui.empty("No round has been recorded yet.", "Once there is one, another guard can be tried on it here.")
    try:
        with JUDGING:
            guard, changes, notes = judge_again(workspace, view, chosen)
    except FedwardenError as error:
        return ui.problem(str(error))
    different = [c for c in changes if c.recorded != c.replayed]
    same = [c for c in changes if c.recorded == c.replayed and c.recorded is not None]
    truth = truth_of(view.run)
    head = f"{len(different)} of {len(changes)} clients are treated differently."
    over = html.Details([html.Summary(f"Over rounds 1 to {view.series.rounds[-1]}; the guard in full"), guard])
    warnings = [html.Li(printable(f"From round {rounds[0]}: {note}")) for note, rounds in notes.items()]
    return ui.card(
        head if different else "The same decisions.",
        html.Div(over, className="note"),
        html.Div([html.Strong("Limits"), html.Ul(warnings)], className="warning") if warnings else None,
        _changes(different + same, truth) if different or same else html.P(NOTHING),
        _unseen(changes),
        id="verdict-card",
    )


@lru_cache(maxsize=8)
def judge_again(
    workspace: Workspace, view: RunRecord, chosen: Settings
) -> tuple[str, list[sim.whatif.Change], dict[Note, list[int]]]:
    """The guard in words, the exclusions before and after, and its warnings."""
    records = workspace.records(view.run.id)
    warden, rounds = sim.whatif.decide_again(view.run, records, chosen, said=view.said)
    warnings = distinct_notes((r.round, w.warning) for r in rounds for w in r.watches if w.warning)
    return spell_guard(warden), sim.whatif.compare(records, rounds), warnings


def options(part: str, name: str, asked: Mapping[str, str]) -> list[Any]:
    """A control for every option of a component, at its default or as the address has it."""
    factory = lookup(part, name)
    hints = get_type_hints(factory)
    made: list[Any] = [html.P(summary(part, name).replace("`", ""), className="note")]
    given = asked if asked.get(part) == name else {}
    for option, default in parameters(factory).items():
        id = {"type": "option", "part": part, "name": option}
        value, hint = given.get(f"{part}.{option}", _shown(default)), hints.get(option)
        choices = get_args(hint) if get_origin(hint) is Literal else ("true", "false") if hint is bool else ()
        if choices:
            known = value if value in choices else choices[0]
            control: Any = dcc.Dropdown(list(choices), known, id=id, clearable=False)
        else:
            control = dcc.Input(_number(value), id=id, type="number", step="any", debounce=0.4)
        made.append(ui.field(option.replace("_", " "), control, of=_spell_id(id)))
    return made


def _part(part: str, label: str, asked: Mapping[str, str]) -> html.Div:
    known = names(part)
    chosen = asked.get(part, "")
    id = {"type": "part", "part": part}
    offers = [{"label": AS_RECORDED, "value": ""}, *known]
    control = dcc.Dropdown(offers, chosen if chosen in known else "", id=id, clearable=False)
    return html.Div([ui.field(label, control, of=_spell_id(id)), html.Div(id={"type": "options", "part": part})])


def _changes(changes: Sequence[sim.whatif.Change], truth: set[str] | None) -> Any:
    heads = ["client", "excluded or in doubt since (recorded)", "excluded or in doubt since (what if)", "change"]
    rows = []
    for c in changes[:ROWS]:
        since = ["-" if t is None else f"round {t}" for t in (c.recorded, c.replayed)]
        rows.append([c.client, *since, _words(c), "attacker" if truth and c.client in truth else "honest"])
    if truth is None:
        rows = [row[:-1] for row in rows]
    more = html.P(f"{len(changes) - ROWS} more clients.") if len(changes) > ROWS else None
    shown = ui.table(CAPTION, heads if truth is None else [*heads, "truth"], rows)
    return html.Div([shown, more])


def _words(change: sim.whatif.Change) -> str:
    before, after = change.recorded, change.replayed
    if before == after:
        return "as recorded"
    if after is None:
        seen = f" up to round {change.unseen_from - 1}, its last" if change.unseen_from else ""
        return "no longer" + seen
    if before is None:
        return "only in the what-if"
    return f"{count(abs(after - before), 'round')} {'later' if after > before else 'earlier'}"


def _unseen(changes: Sequence[sim.whatif.Change]) -> Any:
    gone = sum(c.unseen_from is not None for c in changes)
    text = f"The recorded run stopped asking {count(gone, 'client')} after an exclusion: later rounds are unknown."
    return html.P(text, className="note") if gone else None


def _shown(value: Any) -> str:
    """An option as text."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _spell_id(id: Mapping[str, str]) -> str:
    """An id of several parts as Dash writes it into the page."""
    return json.dumps(id, sort_keys=True, separators=(",", ":"))


def _spelled(default: Any) -> tuple[str, ...]:
    """How a browser may write a default: 1.0 comes back as 1."""
    return (_shown(default), f"{default:g}") if isinstance(default, float) else (_shown(default),)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
