"""Studies: plans of many runs, and the pages that they make."""

from typing import TYPE_CHECKING

from fedwarden.core.late import modules

if TYPE_CHECKING:
    from . import plan as plan

__getattr__ = modules(__name__)
