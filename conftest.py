"""Threads of OpenMP that have nothing to do sleep: else those of one test process turn on cores that another needs."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded, and by every process started later
