"""The store keeps what a run leaves behind: its ledger and its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.late import modules

if TYPE_CHECKING:
    from . import repair as repair

__getattr__ = modules(__name__)
