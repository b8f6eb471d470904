"""Threads of OpenMP that have nothing to do sleep: else those of one test process turn on cores that another needs."""

from __future__ import annotations

import os
from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("appfl") else ["src/fedwarden/appfl/*"]  # read for doctests
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded, and by every process started later
