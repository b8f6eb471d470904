"""Plugs into NVIDIA FLARE: a guarded aggregator for FedAvg and for job files."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..core.errors import MissingExtra

if find_spec("nvflare") is None:
    raise MissingExtra("fedwarden.nvflare needs NVIDIA FLARE, which is not installed: pip install 'fedwarden[nvflare]'")

if TYPE_CHECKING:
    from .aggregator import GuardedAggregator

__all__ = ["GuardedAggregator"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"{__name__}.aggregator"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
