"""The laws of every registered sink against a local target, and what its target remembers."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from fedwarden.conformance import check
from fedwarden.core.registry import make, names
from fedwarden.sinks.feed import Feed

from .readers import OtlpServer

MEMORY = {"tensorboard", "mlflow"}  # those whose target keeps what it got


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def local(tmp_path, database, monkeypatch):
    """Options that keep each sink on this machine."""
    with OtlpServer() as collector:
        monkeypatch.setenv("FEDWARDEN_WEBHOOK", collector.url)
        monkeypatch.setenv("FEDWARDEN_ALERT_COMMAND", f"{sys.executable} -c pass")
        yield {
            "tensorboard": {"folder": str(tmp_path / "events")},
            "mlflow": {"uri": database},
            "opentelemetry": {"endpoint": collector.url},
            "prometheus": {"port": free_port()},
            "webhook": {"every": 0.0},
            "command": {"every": 0.0},
        }


@pytest.mark.parametrize("name", names("sink"))
def test_a_sink_keeps_its_laws(name, local):
    report = check("sink", name, **local.get(name, {}))
    assert not report.broken
    assert not report.cannot_tell or name not in local


def test_a_target_that_is_away_is_no_law_that_is_kept():
    report = check("sink", "opentelemetry", endpoint=f"http://127.0.0.1:{free_port()}/v1/metrics", timeout=0.2)
    assert set(report.kept) == {"first-sentence", "options-have-defaults", "recorded"}
    assert "cannot be reached" in report.cannot_tell["knows-the-newest"]


KILLED = """
import os, signal, sys
from fedwarden.core.registry import make
from fedwarden.sinks.feed import Feed
from fedwarden.store.ledger import Ledger
name, key, value = sys.argv[1:]
with Ledger() as ledger:
    assert Feed(make("sink", name, **{key: value})).send(ledger, 1, before=3) == 2
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MEMORY))
def test_after_a_kill_only_what_is_missing_is_sent(name, local, ledger, run):
    ((key, value),) = local[name].items()
    done = subprocess.run([sys.executable, "-c", KILLED, name, key, value], env=os.environ)
    assert done.returncode == -signal.SIGKILL
    assert Feed(make("sink", name, **local[name])).send(ledger, run) == 1
