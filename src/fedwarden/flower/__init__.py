"""Plugs into Flower: guards any strategy, and audits, attacks or protects as a client mod.

Names are imported when they are first used, so that a client that only audits needs nothing of the server.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..core.errors import MissingExtra

if find_spec("flwr") is None:
    raise MissingExtra("fedwarden.flower needs Flower, which is not installed: pip install 'fedwarden[flower]'")

if TYPE_CHECKING:
    from .groups import GuardedGroups
    from .mods import audit_mod
    from .secure import secure_mod
    from .strategy import Guarded

__all__ = ["Guarded", "GuardedGroups", "audit_mod", "secure_mod"]

_HOMES = {"Guarded": "strategy", "GuardedGroups": "groups", "audit_mod": "mods", "secure_mod": "secure"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
