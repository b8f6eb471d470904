"""Tells a run in plain sentences, and as one HTML file that opens without a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core.late import modules

if TYPE_CHECKING:
    from . import client as client
    from . import html as html

__getattr__ = modules(__name__)
