"""The audit: what one participant can infer of the others from the shared model."""

from ..core.types import Observation
from .auditor import Auditor

__all__ = ["Auditor", "Observation"]
