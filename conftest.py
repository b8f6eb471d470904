"""Doctests are sought in every module, but for one that cannot be imported where Triton is not installed.

Threads of OpenMP that have nothing to do sleep: else those of one test process turn on the cores that another needs.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is loaded, and by every process started later

collect_ignore = (
    [] if find_spec("triton") else [f"src/fedwarden/updates/triton_{name}.py" for name in ("kernels", "products")]
)
