"""Shows the runs, clients, what-ifs and audits of a workspace in a browser, live and read-only."""

from __future__ import annotations

from typing import Any

from ..core.errors import require
from ..core.late import modules


def __getattr__(name: str) -> Any:
    for module in ("dash", "waitress"):
        require(module, "dashboard", "the dashboard")
    return modules(__name__)(name)
