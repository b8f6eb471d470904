"""Figures of runs and audits in Plotly: the dashboard, the report and notebooks draw with these and nothing else."""

from __future__ import annotations

from ..core.errors import require

require("plotly", "dashboard", "a figure")
