"""A rule sets the threshold of a round and flags the clients above it."""

from ..core.late import defined

__getattr__ = defined(__name__)
