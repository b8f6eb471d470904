"""Plugs into APPFL: a guarded aggregator for its synchronous scheduler."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..core.errors import MissingExtra
from ..core.late import late

if find_spec("appfl") is None:
    raise MissingExtra("fedwarden.appfl needs APPFL, which is not installed: pip install 'fedwarden[appfl]'")

if TYPE_CHECKING:
    from .aggregator import GuardedAggregator

__all__ = ["GuardedAggregator"]

__getattr__ = late(__name__, {"aggregator": ["GuardedAggregator"]})
