"""An address that leads to no page."""

from __future__ import annotations

from dash import Dash, dcc
from dash.development.base_component import Component

from ..layout import empty, heading, page
from ..routes import Page, link
from ..state import Workspace


def show(_: Page) -> list[Component]:
    back = dcc.Link("The runs of this workspace", href=link("runs"))
    return page("Not found", heading("There is no such page"), empty("This address leads nowhere.", back))


def version(workspace: Workspace, _: Page) -> str:
    return ""


def register(app: Dash, workspace: Workspace) -> None:
    """Nothing on this page changes."""
