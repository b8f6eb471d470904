"""Plugs into Flower: guards any strategy, and audits, attacks or protects as a client mod.

Names are imported when they are first used, so that a client that only audits needs nothing of the server.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..core.errors import MissingExtra
from ..core.late import late
from ..core.log import json_lines

if find_spec("flwr") is None:
    raise MissingExtra("fedwarden.flower needs Flower, which is not installed: pip install 'fedwarden[flower]'")

json_lines("flwr")

if TYPE_CHECKING:
    from .asynchronous import Asynchronous
    from .groups import GuardedGroups
    from .mods import audit_mod, jury_mod
    from .secure import secure_mod
    from .strategy import Guarded

__all__ = ["Asynchronous", "Guarded", "GuardedGroups", "audit_mod", "jury_mod", "secure_mod"]

__getattr__ = late(
    __name__,
    {
        "asynchronous": ["Asynchronous"],
        "groups": ["GuardedGroups"],
        "mods": ["audit_mod", "jury_mod"],
        "secure": ["secure_mod"],
        "strategy": ["Guarded"],
    },
)
