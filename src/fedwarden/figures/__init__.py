"""Figures of runs and audits in Plotly: the dashboard, the report and notebooks draw with these and nothing else."""

from __future__ import annotations

from importlib.util import find_spec

from ..core.errors import MissingExtra

if find_spec("plotly") is None:
    raise MissingExtra(
        "figures need plotly, which is not installed; install it with: pip install 'fedwarden[dashboard]'"
    )
