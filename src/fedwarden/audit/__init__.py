"""The audit: what one participant can infer of the others from the shared model."""

from .auditor import Auditor, Observation

__all__ = ["Auditor", "Observation"]
