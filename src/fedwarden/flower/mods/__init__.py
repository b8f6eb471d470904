"""Mods of a ClientApp: the auditor, a red team that is off until a node switches it on, and noise on what is sent."""

from .audit import audit_mod
from .privacy import clip_and_noise
from .red_team import attack_mod, poisoned

__all__ = ["attack_mod", "audit_mod", "clip_and_noise", "poisoned"]
