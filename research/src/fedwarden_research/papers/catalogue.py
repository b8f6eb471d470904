"""The papers by name."""

from __future__ import annotations

from fedwarden.core.errors import ConfigError, nearest

from .divergence_items import PAPER as DIVERGENCE
from .item import Paper
from .pid_made_items import PAPER as PID_MADE
from .shift_items import PAPER as SHIFTS

PAPERS = {paper.name: paper for paper in (PID_MADE, DIVERGENCE, SHIFTS)}


def paper_of(name: str) -> Paper:
    if name not in PAPERS:
        raise ConfigError(f"there is no paper {name!r} here; {nearest(name, PAPERS)}")
    return PAPERS[name]
