"""Flower in a test: no telemetry, a workspace of its own, and the identity that a ServerApp's process has."""

import logging
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from .nodes import SUPERLINK

collect_ignore = ["unequal"]  # files for an app of a test


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "runs"))
    monkeypatch.setattr(logging.getLogger("flwr"), "level", logging.ERROR)
    monkeypatch.setattr("gc.collect", lambda *_: 0)  # Flower collects after every array that it reads
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, SUPERLINK


@pytest.fixture
def swept(tmp_path: Path) -> Iterator[None]:
    """Every process with the test's folder in its environment ends with the test: Flower puts some into new sessions.

    Also where the test is ended by SIGTERM, as by ``timeout``.
    """
    before = signal.signal(signal.SIGTERM, lambda *_: pytest.exit("ended by SIGTERM"))
    yield
    signal.signal(signal.SIGTERM, before)
    for place in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(tmp_path) in place.read_bytes() and int(place.parent.name) != os.getpid():
                os.kill(int(place.parent.name), signal.SIGKILL)
