"""A history turns what a client scored in many rounds into one score."""

from ..core.late import defined

__getattr__ = defined(__name__)
