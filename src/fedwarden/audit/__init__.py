"""The audit measures what a participant can infer about the others from the shared model."""

from ..core.types import Observation
from .auditor import Auditor

__all__ = ["Auditor", "Observation"]
