"""Plugs into NVIDIA FLARE: a guarded aggregator for FedAvg and for job files, and a filter of metrics for sites."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..core.errors import MissingExtra
from ..core.late import late

if find_spec("nvflare") is None:
    raise MissingExtra("fedwarden.nvflare needs NVIDIA FLARE, which is not installed: pip install 'fedwarden[nvflare]'")

if TYPE_CHECKING:
    from .aggregator import GuardedAggregator
    from .privacy import OnlyMetrics

__all__ = ["GuardedAggregator", "OnlyMetrics"]

__getattr__ = late(__name__, {"aggregator": ["GuardedAggregator"], "privacy": ["OnlyMetrics"]})
