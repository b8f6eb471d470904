"""Draws runs and audits with Plotly, for the dashboard, the report and notebooks."""

from __future__ import annotations

from ..core.errors import require

require("plotly", "dashboard", "a figure")
