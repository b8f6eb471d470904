"""The Dash application: which page an address shows, and how a page stays up to date."""

from __future__ import annotations

from pathlib import Path

from dash import ClientsideFunction, Dash, Input, Output, State, no_update, set_props
from dash.development.base_component import Component

from ..core.errors import FedwardenError
from . import layout, pages
from .routes import read
from .security import protect
from .state import Workspace

ASSETS = Path(__file__).with_name("assets")
UNEXPECTED = "Something unexpected happened; the terminal of the dashboard says what."
INDEX = """<!DOCTYPE html>
<html lang="en">
<head>
{%metas%}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{%title%}</title>
<link rel="icon" href="/assets/icon.svg" type="image/svg+xml">
{%css%}
</head>
<body>
<noscript>This dashboard needs JavaScript, all of which comes from this server.</noscript>
{%app_entry%}
<footer>{%config%}{%scripts%}{%renderer%}</footer>
</body>
</html>"""


def create_app(folder: Path, token: str | None = None) -> Dash:
    """The dashboard of a workspace; with a token it serves whoever has it, without one this machine alone."""
    workspace = Workspace(folder)
    app = Dash(
        __name__, title="fedwarden", update_title="", index_string=INDEX, assets_folder=str(ASSETS),
        suppress_callback_exceptions=True, serve_locally=True, compress=False, add_log_handler=False,
        enable_mcp=False, on_error=lambda error: _tell(app, error),
    )  # fmt: skip
    app.enable_dev_tools(debug=False)
    app.layout = layout.frame(str(folder))
    _route(app, workspace)
    for module in set(pages.PAGES.values()):
        module.register(app, workspace)
    protect(app.server, token, app.csp_hashes(), {path.name for path in ASSETS.iterdir()})
    return app


def _route(app: Dash, workspace: Workspace) -> None:
    @app.callback(Output("page", "children"), Input("url", "pathname"), State("url", "search"))
    def show(path: object, search: object) -> list[Component]:
        """The page of an address; what it shows follows with its first version."""
        page = read(path, search)
        shown: list[Component] = pages.PAGES[page.kind].show(page)
        return shown

    @app.callback(
        Output("version", "data"),
        Output("problem", "children"),
        Output("body", "className"),
        Input("tick", "n_intervals"),
        State("url", "search"),
        State("url", "pathname"),
        State("version", "data"),
        State("problem", "children"),
    )
    def look(_: object, search: object, path: object, known: object, told: object) -> object:
        """Whether there is something new; a page that cannot be read keeps what it shows and says so."""
        page = read(path, search)
        try:
            version = pages.PAGES[page.kind].version(workspace, page)
        except FedwardenError as error:
            return no_update, layout.problem(str(error)), "unread" if known is None else no_update
        new, well = version != known, not told
        return version if new else no_update, no_update if well else [], "" if new else no_update

    for name, inputs in (("theme", ("theme", "value")), ("title", ("title", "data"))):
        extra = [Input("scheme", "data"), State("url", "search")] if name == "theme" else []
        target = Output("dark", "data") if name == "theme" else Output("titled", "title")
        app.clientside_callback(ClientsideFunction("fedwarden", name), target, Input(*inputs), *extra)


def _tell(app: Dash, error: Exception) -> None:
    """A callback failed: in words on the page, and what nobody foresaw with its trace in the terminal."""
    foreseen = isinstance(error, FedwardenError)
    if not foreseen:
        app.server.logger.error("a callback failed", exc_info=error)
    set_props("problem", {"children": layout.problem(str(error) if foreseen else UNEXPECTED)})
