"""Flower in a test: no telemetry, a workspace of its own, and the identity that a ServerApp's process has."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from .nodes import SUPERLINK


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "runs"))
    monkeypatch.setattr(logging.getLogger("flwr"), "level", logging.ERROR)
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # Flower collects after every array that it reads
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK
