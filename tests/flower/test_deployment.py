"""A real federation on loopback: TLS, node authentication, two nodes that attack, one killed with -9 in a round."""

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedwarden.core.reported import STALENESS
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import RoundStory

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("swept"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("openssl", "ssh-keygen", "bash"))), reason="needs openssl and ssh-keygen"
    ),
]


def test_a_red_team_of_two_acts_one_node_is_killed_and_no_honest_one_is_in_doubt(tmp_path):
    """Of the five nodes left, fewer than six, none is skipped; what each does in the model is bounded."""
    script = EXAMPLES / "deployment" / "deploy.py"
    attacks = {1: "sign_flip", 4: "label_flip"}
    orders = [word for number, name in attacks.items() for word in ("--red-team", f"{number}={name}")]
    options = ["--nodes", "6", "--rounds", "3", "--poisoned", "-1", "--killed", "3", *orders]
    command = [sys.executable, str(script), "--folder", str(tmp_path), "--timeout", "560", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    acted = {}  # by what each node has logged itself
    for number in range(6):
        log = (tmp_path / f"node{number}.log").read_text()
        acted[number] = re.findall(
            r"RED TEAM: in round (\d+) node (\d+) (?:sends|trains on data changed by) (\w+)", log
        )
    assert {number: {name for _, _, name in found} for number, found in acted.items() if found} == {
        number: {name} for number, name in attacks.items()
    }
    assert all({t for t, _, _ in acted[number]} == {"1", "2", "3"} for number in attacks)
    attackers = {node for number in attacks for _, node, _ in acted[number]}
    with Ledger(tmp_path / "runs") as ledger:
        run = ledger.run("quickstart")
        records = ledger.records(run.id)
    assert (run.state, run.engine, len(records), len(attackers)) == ("done", "flower", 3, 2)
    everybody = set(records[0].client_ids)
    assert len(everybody) == 6
    (lost,) = {r.client_id for record in records for r in record.rejected}
    assert set(records[-1].client_ids) == everybody - {lost}
    assert lost not in attackers
    for record in records:
        assert set(RoundStory(record).in_doubt) <= attackers, f"round {record.round}"
        assert not record.excluded
    assert (records[-1].weights > 0).all()
    assert records[-1].metrics["accuracy"] > 0.6
    log = (tmp_path / "superlink.log").read_text()
    assert "https" in log.lower() or "ssl" in log.lower() or "tls" in log.lower()


def test_nodes_of_different_speed_one_killed_and_one_late(tmp_path, monkeypatch):
    """Two replies fill a buffer; the killed and the late node are named, and the late one is asked again."""
    spec = importlib.util.spec_from_file_location("deploy", EXAMPLES / "deployment" / "deploy.py")
    deploy = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(deploy)
    app = shutil.copytree(deploy.APP, tmp_path / "source")
    (app / "quickstart" / "client.py").rename(app / "quickstart" / "nodes.py")
    (app / "quickstart" / "server.py").rename(app / "quickstart" / "rounds.py")
    for path in (Path(__file__).parent / "unequal").glob("*.py"):
        shutil.copy(path, app / "quickstart")
    monkeypatch.setattr(deploy, "APP", app)
    subprocess.run([deploy.HERE / "certificates.sh", tmp_path / "keys", "5"], check=True, timeout=60)
    tools = f"{deploy.TOOLS}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **deploy.OFFLINE, "PATH": tools, "OMP_NUM_THREADS": "1"}
    environment |= {"FLWR_HOME": str(tmp_path / "flwr"), "FEDWARDEN_HOME": str(tmp_path / "runs")}
    deadline = time.monotonic() + 500

    def rejected(kind, *more):
        with Ledger(tmp_path / "runs") as ledger:
            found = [r for record in ledger.records(1) for r in record.rejected]
        return {r.client_id for r in found if r.reason.kind in (kind, *more)}

    with ExitStack() as stack:
        federation = deploy.Federation(tmp_path, environment, stack)
        federation.start_superlink()
        for i in range(5):
            federation.start_node(i, 5, "")
        run = federation.start_run(SimpleNamespace(rounds=9, nodes=5, killed=3, poisoned=-1, red_team={}))
        for number in (3, 4):  # both are at work for the second time
            deploy.wait_until((tmp_path / f"node{number}-2").exists, deadline, "the second message of a node")
        deploy.end(federation.nodes[3], signal.SIGKILL)
        time.sleep(60)  # the timeout of the app
        (tmp_path / "released").touch()
        deploy.wait_until(lambda: len(rejected("no_answer", "failed")) >= 2, deadline, "the ledger to name both")
        (tmp_path / "allowed").touch()
        assert run.wait(timeout=deadline - time.monotonic()) == 0
    with Ledger(tmp_path / "runs") as ledger:
        run = ledger.run("unequal")
        records = ledger.records(run.id)
    assert (run.state, run.engine, len(records)) == ("done", "flower", 9)
    assert all(len(r.client_ids) <= 2 for r in records[1:])
    assert any(age > 0 for r in records for age in r.reported[STALENESS].values())
    late, silent = rejected("model_gone"), rejected("no_answer", "failed")
    assert late
    assert late < silent
    first = {c: next(r.round for r in records if c in {x.client_id for x in r.rejected}) for c in silent}
    assert [c for c in silent - late if not any(c in r.client_ids for r in records[first[c] :])], "the killed node"
    assert (tmp_path / "node4-3").exists(), "the late node is asked again"
    assert records[-1].metrics["accuracy"] > 0.8
    show = [deploy.TOOLS / "fedwarden", "show", "unequal"]
    shown = subprocess.run(show, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert all(f"rejected client {client}" in shown for client in silent)
