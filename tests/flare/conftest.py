"""NVIDIA FLARE in a test: a workspace of its own."""

from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore = [] if find_spec("nvflare") else ["sites.py"]  # no test, but read for doctests


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"
