"""NVIDIA FLARE in a test: a workspace of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def workspace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "runs"))
    return tmp_path / "runs"
