"""What programs ask of the dashboard, and which runs still have a writer."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from fedwarden.dashboard.app import create_app
from fedwarden.dashboard.health import exposition
from fedwarden.store.claim import SILENT, claim, is_abandoned
from fedwarden.store.ledger import Ledger
from fedwarden.store.recorder import Recorder

DIE = """
import os, sys
from pathlib import Path
from fedwarden.store.recorder import Recorder
recorder = Recorder(Path(sys.argv[1]))
recorder.start("killed", "test", {"rounds": 9})
print("claimed", flush=True)
sys.stdin.read()
os._exit(9)
"""


@pytest.fixture
def killed(home):
    """A run of another process: ``killed()`` ends it without a word."""
    run = subprocess.Popen([sys.executable, "-c", DIE, str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    run.stdout.readline()

    def kill():
        run.kill()
        run.communicate()

    yield kill
    with suppress(ValueError):
        kill()


def test_the_health_of_a_workspace(home):
    client = create_app(home).server.test_client()
    found = client.get("/healthz")
    assert (found.status_code, found.mimetype) == (200, "application/json")
    assert found.json.keys() == {"status", "ledger", "runs", "last_commit"}
    assert (found.json["status"], found.json["runs"], found.json["ledger"]) == ("ok", 2, str(home / "ledger.sqlite"))
    assert abs(time.time() - time.mktime(time.strptime(found.json["last_commit"][:19], "%Y-%m-%dT%H:%M:%S"))) < 86400
    (home / "ledger.sqlite").write_bytes(b"no database" * 999)
    found = client.get("/healthz")
    assert (found.status_code, found.json["status"]) == (503, "failed")
    assert "cannot" in found.json["reason"]
    assert client.get("/metrics").status_code == 503
    (home / "ledger.sqlite").unlink()
    assert "run something first" in client.get("/healthz").json["reason"]


def test_the_runs_for_prometheus(home):
    parser = pytest.importorskip("prometheus_client.parser", reason="the extra 'prometheus' is not installed")
    found = create_app(home).server.test_client().get("/metrics")
    assert found.mimetype == "text/plain"
    samples = {
        (s.name, *s.labels.values()): s.value
        for family in parser.text_string_to_metric_families(found.text)
        for s in family.samples
    }
    assert samples["fedwarden_runs", "done"] == samples["fedwarden_runs", "interrupted"] == 1
    assert samples["fedwarden_run_rounds", "1", "guarded"] == 6
    assert samples["fedwarden_run_accuracy", "1", "guarded"] == 0.6
    assert samples["fedwarden_run_excluded_clients", "1", "guarded"] == 1
    assert samples["fedwarden_run_failed", "2", "plain"] == 1
    assert time.time() - samples["fedwarden_run_last_commit_timestamp_seconds", "1", "guarded"] < 3600


def test_a_name_cannot_add_a_line_to_the_metrics():
    run = {"run": 1, "name": 'a"} 1\nb\\', "state": "done", "rounds": 1, "accuracy": None, "excluded": []}
    text = "\n".join(exposition([{**run, "committed": 1.0}]))
    assert '{run="1",name="a\\"} 1\\nb\\\\"} 1' in text
    assert "run_accuracy{" not in text


def test_a_run_whose_process_is_gone_is_interrupted_everywhere(home, killed, asker):
    ask, look = asker(home), {"url__pathname": "/run/3", "url__search": ""}
    with Ledger(home, read_only=True) as ledger:
        assert ledger.run(3).state == "running"
        before = ask("version.data", **look)["response"]["version"]["data"]
        killed()
        run = ledger.run(3)
    assert run.state == "interrupted"
    assert run.state_in_words.startswith("interrupted since 2")
    after = ask("version.data", **look, version__data=before)["response"]["version"]["data"]
    assert after != before
    shown = ask("heading.children", version__data=after, url__pathname="/run/3")["response"]
    assert run.state_in_words in str(shown["heading"])
    told = ask("summary.children", version__data=after, url__pathname="/run/3")["response"]
    assert f"has been {run.state_in_words}, after 0 of 9 rounds" in str(told["summary"])
    assert run.state_in_words in str(ask("runs.children", version__data="1")["response"])
    with Recorder(home) as recorder:
        recorder.resume(run, run.config, lambda state, t: state)
        with Ledger(home, read_only=True) as ledger:
            assert ledger.run(3).state == "running"


def test_a_writer_elsewhere_is_known_by_its_rounds(tmp_path):
    now, long_ago = time.time(), time.time() - SILENT - 1
    assert not is_abandoned(tmp_path, 1, None)  # nothing is known: as recorded
    assert (is_abandoned(tmp_path, 1, now), is_abandoned(tmp_path, 1, long_ago)) == (False, True)
    with claim(tmp_path, 1):
        assert not is_abandoned(tmp_path, 1, long_ago)
    assert is_abandoned(tmp_path, 1, now)
    (tmp_path / "locks" / "1").write_text(f"{os.getpid()} another-host\n")
    assert (is_abandoned(tmp_path, 1, now), is_abandoned(tmp_path, 1, long_ago)) == (False, True)
