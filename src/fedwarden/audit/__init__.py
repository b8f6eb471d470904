"""The audit measures what a participant can infer about the others from the shared model."""

from typing import TYPE_CHECKING

from ..core.late import late
from ..core.types import Observation

if TYPE_CHECKING:
    from .auditor import Auditor

__all__ = ["Auditor", "Observation"]

__getattr__ = late(__name__, {"auditor": ["Auditor"]})
