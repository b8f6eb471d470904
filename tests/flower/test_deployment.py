"""A real federation on loopback: TLS, node authentication, one node poisoned, one killed with -9 in a round."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fedwarden.store.ledger import Ledger

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(shutil.which, ("openssl", "ssh-keygen", "bash"))), reason="needs openssl and ssh-keygen"
)
def test_five_nodes_of_which_one_is_poisoned_and_one_is_killed(tmp_path):
    script = EXAMPLES / "deployment" / "deploy.py"
    command = [sys.executable, str(script), "--folder", str(tmp_path), "--rounds", "4", "--timeout", "480"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    with Ledger(tmp_path / "runs") as ledger:
        run = ledger.run("quickstart")
        records = ledger.records(run.id)
    assert (run.state, run.engine, len(records)) == ("done", "flower", 4)
    everybody = set(records[0].client_ids)
    assert len(everybody) == 5
    (lost,) = {r.client_id for record in records for r in record.rejected}
    assert lost in everybody - set(records[-1].client_ids)
    (poisoned,) = records[-1].excluded
    assert poisoned != lost
    assert set(records[-1].client_ids) >= everybody - {lost, poisoned}
    assert records[-1].metrics["accuracy"] > 0.8
    log = (tmp_path / "superlink.log").read_text()
    assert "https" in log.lower() or "ssl" in log.lower() or "tls" in log.lower()
