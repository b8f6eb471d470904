"""A real federation on loopback: TLS, node authentication, two nodes that attack, one killed with -9 in a round."""

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
