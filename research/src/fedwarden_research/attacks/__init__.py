"""Attacks from papers that only comparisons use."""

from . import frame as frame
from . import shift as shift
