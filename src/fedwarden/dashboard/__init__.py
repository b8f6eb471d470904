"""Shows the runs, clients, what-ifs and audits of a workspace in a browser, live and read-only."""

from __future__ import annotations

from ..core.errors import require

require("dash", "dashboard", "the dashboard")
require("waitress", "dashboard", "the dashboard")
