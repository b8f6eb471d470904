"""A real federation on loopback: TLS, node authentication, one node poisoned, one killed with -9 in a round."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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


def deploy(folder, *options):
    script = EXAMPLES / "deployment" / "deploy.py"
    command = [sys.executable, str(script), "--folder", str(folder), "--timeout", "560", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_five_nodes_of_which_one_is_poisoned_and_one_is_killed(tmp_path):
    deploy(tmp_path, "--rounds", "4")
    with Ledger(tmp_path / "runs") as ledger:
        run = ledger.run("quickstart")
        records = ledger.records(run.id)
    assert (run.state, run.engine, len(records)) == ("done", "flower", 4)
    everybody = set(records[0].client_ids)
    assert len(everybody) == 5
    (lost,) = {r.client_id for record in records for r in record.rejected}
    assert lost in everybody - set(records[-1].client_ids)
    assert not records[-1].excluded
    doubted = {client for record in records for client in everybody if RoundStory(record).in_doubt.get(client)}
    assert len(doubted) <= 1, "no honest node is in doubt"
    assert set(records[-1].client_ids) == everybody - {lost}
    assert records[-1].metrics["accuracy"] > 0.8
    log = (tmp_path / "superlink.log").read_text()
    assert "https" in log.lower() or "ssl" in log.lower() or "tls" in log.lower()


def test_a_red_team_on_two_of_five_nodes_acts_and_puts_no_other_node_in_doubt(tmp_path):
    """Below six nodes none is left out of the model; what each does in it is bounded."""
    attacks = {1: "sign_flip", 3: "label_flip"}
    orders = [word for number, name in attacks.items() for word in ("--red-team", f"{number}={name}")]
    deploy(tmp_path, "--rounds", "3", "--poisoned", "-1", "--killed", "-1", *orders)
    acted = {}  # by what each node has logged itself
    for number in range(5):
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
    assert (run.state, len(records), len(attackers)) == ("done", 3, 2)
    for record in records:
        assert len(record.client_ids) == 5
        assert set(RoundStory(record).in_doubt) <= attackers, f"round {record.round}"
        assert (record.weights > 0).all(), f"round {record.round}"
    assert records[-1].metrics["accuracy"] > 0.6  # of five nodes none is skipped, and two attack
