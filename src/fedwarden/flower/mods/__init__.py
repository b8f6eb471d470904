"""Mods of a ClientApp: the auditor, a red team that is off until a node switches it on, and noise on what is sent.

Names are imported when they are first used: a client without a red team loads no attack.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit import audit_mod
    from .privacy import clip_and_noise
    from .red_team import attack_mod, poisoned

__all__ = ["attack_mod", "audit_mod", "clip_and_noise", "poisoned"]

_HOMES = {"attack_mod": "red_team", "audit_mod": "audit", "clip_and_noise": "privacy", "poisoned": "red_team"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
