"""A policy says what becomes of a flagged client."""

from ..core.late import defined

__getattr__ = defined(__name__)
