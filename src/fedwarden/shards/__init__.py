"""Decides on updates that no server holds: Ray workers have some columns of all clients each."""

from __future__ import annotations

from importlib.util import find_spec

from ..core.errors import MissingExtra

if find_spec("ray") is None:
    raise MissingExtra("fedwarden.shards needs Ray, which is not installed: pip install 'fedwarden[shards]'")

from .pool import LostShard, NeedsRows, Shards

__all__ = ["LostShard", "NeedsRows", "Shards"]
