"""A signal measures every client in one round; a higher score is more suspicious."""

from ..core.late import defined

__getattr__ = defined(__name__)
