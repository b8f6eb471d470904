"""An aggregator combines the updates of a round into one."""

from ..core.late import defined

__getattr__ = defined(__name__)
