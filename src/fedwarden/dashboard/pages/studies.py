"""Studies of leakage: which source tells a change from its nulls, and what hides it at which price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

from dash import Dash, Input, Output, State, dcc, html
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate

from ...figures import audit as figures
from ...papers.shift_audits import AUDITS
from ...papers.shift_mitigations import measured
from ...papers.shift_tables import name, severities, sources, verdicts
from ...papers.shifts import FRESH, SETTINGS, STILL, Change, ratio
from ..layout import address, empty, field, graph, heading, move, page
from ..routes import Page, query, search
from ..state import Workspace

Judged = Sequence[figures.Measure] | Mapping[str, Mapping[str, figures.Separation]]
KINDS = dict.fromkeys(audit.runs for audit in AUDITS.values())
NAMES = tuple(f"{kind}-{data}" for kind, data in product(KINDS, SETTINGS))
MITIGATIONS = frozenset(f"{AUDITS['audit-mitigations'].runs}-{data}" for data in SETTINGS)


def show(_: Page) -> list[Component]:
    tools = [
        field(label, dcc.Dropdown(id=id, clearable=False), of=id)
        for id, label in (("study", "Study"), ("case", "Case"))
    ]
    return page(
        "Studies",
        address("studies"),
        heading("Studies of leakage"),
        html.Div(id="no-study"),
        html.Div(
            [
                html.Div(tools, className="tools"),
                dcc.Loading(graph("study-figure", "The result of the study"), type="dot", delay_show=300),
            ],
            id="studies",
            hidden=True,
        ),
    )


def version(workspace: Workspace, _: Page) -> str:
    return " ".join(f"{n}:{stamp}" for n in NAMES if (stamp := workspace.study_stamp(n)) is not None)


def register(app: Dash, workspace: Workspace) -> None:
    @app.callback(
        Output("no-study", "children"),
        Output("studies", "hidden"),
        Output("study", "options"),
        Output("study", "value"),
        Output("case", "options"),
        Output("case", "value"),
        Input("version", "data"),
        Input("study", "value"),
        State("case", "value"),
        State("url", "search"),
    )
    def choices(version: object, study: object, case: object, asked: object) -> object:
        if version is None:
            raise PreventUpdate
        there = [n for n in NAMES if workspace.study_stamp(n) is not None]
        if not there:
            return nothing(), True, [], None, [], None
        study, case = study or query(asked).get("study"), case or query(asked).get("case")
        chosen = study if study in there else there[0]
        known = list(cases(workspace, chosen))
        return [], False, there, chosen, known, case if case in known else next(iter(known), None)

    @app.callback(
        Output("study-figure", "figure"),
        Output("study-figure", "style"),
        Output("studies-address", "search"),
        Input("version", "data"),
        Input("study", "value"),
        Input("case", "value"),
        Input("dark", "data"),
        State("studies-address", "search"),
    )
    def draw(version: object, study: object, case: object, dark: object, asked: object) -> object:
        if version is None or dark is None or study not in NAMES or case not in cases(workspace, study):
            raise PreventUpdate
        results = judged(workspace, study, workspace.study_stamp(study), case)
        if isinstance(results, Mapping):
            drawn = figures.aurocs(results, bool(dark))
        else:
            drawn = figures.mitigation(results, bool(dark))
        found = search(study=study, case=case)
        drawn.update_layout(uirevision=f"{study} {case}")
        return drawn, {"minHeight": drawn.layout.height}, move(asked, found)


def cases(workspace: Workspace, study: str) -> dict[str, tuple[int, int, float]]:
    """What of a study can be shown, in words: clients, those that change, severity; of the mitigations, all in one."""
    found = workspace.study(study)
    if study in MITIGATIONS:
        return {"all measures": (0, 0, 0.0)} if measured(found) else {}
    sizes = sorted({(r["cell"]["n"], r["cell"]["m"]) for r in found})
    return {f"{m} of {n} changes to {ratio(e)}": (n, m, e) for n, m in sizes for e in severities(found)[::-1]}


@lru_cache(maxsize=16)
def judged(workspace: Workspace, study: str, stamp: object, case: str) -> Judged:
    """The measures of a mitigation study, or every source's verdicts in a case; ``stamp`` tells when to look again."""
    found = workspace.study(study)
    if study in MITIGATIONS:
        return measured(found)
    n, m, even = cases(workspace, study)[case]
    part = [r for r in found if (r["cell"]["n"], r["cell"]["m"]) == (n, m)]
    return {name(key): verdicts(part, key, Change("fresh", even), [STILL, FRESH]) for key in sources(part)}


def nothing() -> html.Div:
    return empty(
        "No study of leakage has been run in this workspace.",
        ["Start one with ", html.Code("fedwarden reproduce shifts mitigations"), " or ",
         html.Code("fedwarden reproduce shifts sensitivity --data digits"), "; its results appear here as they come."],
    )  # fmt: skip
