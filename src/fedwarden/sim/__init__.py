"""Simulates a federation in one process: data, training, attackers, server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.late import modules

if TYPE_CHECKING:
    from . import change_audit as change_audit
    from . import federation as federation
    from . import tune as tune
    from . import whatif as whatif

__getattr__ = modules(__name__)
