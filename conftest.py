"""Doctests are sought in every module, but for one that cannot be imported where Triton is not installed."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore = [] if find_spec("triton") else ["src/fedwarden/updates/triton_kernels.py"]
