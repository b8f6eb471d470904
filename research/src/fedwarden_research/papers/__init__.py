"""Reproduces the tables and figures of the three papers behind fedwarden, one file a paper or a few."""

from typing import TYPE_CHECKING

from fedwarden.core.late import modules

if TYPE_CHECKING:
    from . import item as item
    from . import page as page

__getattr__ = modules(__name__)
