"""Mods of a ClientApp: the auditor, adapters of a rank, jurors, noise, and a red team that a node switches on.

Names are imported when they are first used: a client without a red team loads no attack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...core.late import late

if TYPE_CHECKING:
    from .adapters import adapter_mod
    from .audit import audit_mod
    from .jury import jury_mod
    from .privacy import clip_and_noise
    from .red_team import attack_mod, poisoned

__all__ = ["adapter_mod", "attack_mod", "audit_mod", "clip_and_noise", "jury_mod", "poisoned"]

__getattr__ = late(
    __name__,
    {
        "adapters": ["adapter_mod"],
        "audit": ["audit_mod"],
        "jury": ["jury_mod"],
        "privacy": ["clip_and_noise"],
        "red_team": ["attack_mod", "poisoned"],
    },
)
