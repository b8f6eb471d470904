"""The Dash application: which page an address shows, and how a page stays up to date."""

from __future__ import annotations

from pathlib import Path

from dash import ClientsideFunction, Dash, Input, Output, State, no_update, set_props
from dash.development.base_component import Component

from ..core.errors import FedwardenError
from ..core.words import printable
from . import health, layout, pages
from .routes import read
from .security import LOCAL, Access, protect
from .state import Workspace

ASSETS = Path(__file__).with_name("assets")
UNEXPECTED = "An unexpected error: the terminal of the dashboard has it in full."
INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
<link rel="icon" href="PREFIX/assets/icon.svg" type="image/svg+xml">
{%css%}
</head>
<body>
<noscript>This dashboard needs JavaScript, all of which comes from this server.</noscript>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""


def create_app(folder: Path, access: Access = LOCAL) -> Dash:
    """The dashboard of a workspace, for those to whom ``access`` is given."""
    workspace = Workspace(folder)
    app = Dash(
        __name__, title="fedwarden", update_title="", assets_folder=str(ASSETS),
        index_string=INDEX.replace("PREFIX", access.prefix), requests_pathname_prefix=f"{access.prefix}/",
        suppress_callback_exceptions=True, serve_locally=True, compress=False, add_log_handler=False,
        enable_mcp=False, on_error=lambda error: _tell(app, error),
    )  # fmt: skip
    app.enable_dev_tools(debug=False)
    app.layout = lambda: layout.frame(str(folder))
    health.register(app.server, workspace)
    _route(app, workspace)
    for module in pages.PAGES.values():
        module.register(app, workspace)
    protect(app.server, access, app.csp_hashes(), {path.name for path in ASSETS.iterdir()})
    return app


def _route(app: Dash, workspace: Workspace) -> None:
    @app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))
    def show(path: object, search: object) -> list[Component]:
        """The page of an address; what it shows follows with its first version."""
        page = read(path, search)
        try:
            shown: list[Component] = pages.PAGES[page.kind].show(page) if page.kind in pages.PAGES else layout.nowhere()
        except Exception as error:
            return layout.page("Error", layout.heading("This page cannot be shown"), layout.problem(_words(app, error)))
        return shown

    @app.callback(
        Output("version", "data"),
        Output("problem", "children"),
        Output("failure", "children"),
        Output("body", "className"),
        Input("tick", "n_intervals"),
        State("url", "search"),
        State("url", "pathname"),
        State("version", "data"),
        State("problem", "children"),
        running=[(Output("tick", "interval"), layout.LOST, layout.TICK)],  # a second look would discard the first
    )
    def look(_: object, search: object, path: object, known: object, told: object) -> object:
        """Whether there is something new; a page that cannot be read keeps what it shows and says so."""
        page = read(path, search)
        try:
            version = pages.PAGES[page.kind].version(workspace, page) if page.kind in pages.PAGES else ""
        except FedwardenError as error:
            return (
                no_update,
                layout.problem(str(error), layout.STALE if known else layout.FAILED),
                no_update,
                "unread" if known is None else no_update,
            )
        new = version != known
        return version if new else no_update, [] if told else no_update, *(([], "") if new else (no_update, no_update))

    @app.callback(Output("heading", "children"), Output("title", "data"), layout.VERSION, layout.PATH, layout.QUERY)
    def name_run(version: object, path: object, search: object) -> object:
        run = workspace.run(layout.run_of(path, version))
        words, page = f"Run {run.id}  {run.name}", read(path, search)
        part = layout.TABS.get(page.kind, f"client {printable(page.query.get('name', ''))}")
        return [f"{words} ", layout.state(run.state_in_words)], f"{words}, {part}"

    for name, inputs in (("theme", ("theme", "value")), ("title", ("title", "data"))):
        extra = [Input("scheme", "data"), State("url", "search")] if name == "theme" else []
        target = Output("dark", "data") if name == "theme" else Output("titled", "title")
        app.clientside_callback(ClientsideFunction("fedwarden", name), target, Input(*inputs), *extra)


def _tell(app: Dash, error: Exception) -> None:
    """A callback failed: the page says so until there is something new."""
    set_props("failure", {"children": layout.problem(_words(app, error))})


def _words(app: Dash, error: Exception) -> str:
    """An error as the page has it; what nobody foresaw stands with its trace in the terminal."""
    if isinstance(error, FedwardenError):
        return str(error)
    app.server.logger.error("a callback failed", exc_info=error)
    return UNEXPECTED
