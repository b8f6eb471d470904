"""A scenario gives the same run on Flower's simulation engine as in one process."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fedwarden.store.ledger import Ledger

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

SCENARIO = """
name = "both"
rounds = 3
seed = 5

[data]
clients = 6

[model]
name = "mlp"
hidden = [16]

[train]
momentum = 0.9
workers = 2
participation = 0.85

[[attacks]]
name = "label_flip"
clients = [1]

[[attacks]]
name = "sign_flip"
clients = [4]
start = 2
"""


@pytest.mark.slow
def test_the_same_scenario_on_both_engines(tmp_path):
    """Ray is started and ended in a process of its own."""
    (tmp_path / "both.toml").write_text(SCENARIO)
    told = {}
    env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    for engine in ("in-process", "flower"):
        args = ["run", tmp_path / "both.toml", "--engine", engine, "--home", tmp_path / engine, "--json"]
        done = subprocess.run(
            [sys.executable, "-m", "fedwarden", *map(str, args)],
            capture_output=True, text=True, timeout=240, env={**env, "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        told[engine] = json.loads(done.stdout)
    assert told["flower"]["accuracy"] == pytest.approx(told["in-process"]["accuracy"], abs=0.01)
    assert told["flower"]["excluded"] == told["in-process"]["excluded"]
    records = []
    for engine in told:
        with Ledger(tmp_path / engine) as ledger:
            records.append(ledger.records(1))
    for a, b in zip(*records, strict=True):
        assert a.client_ids == b.client_ids
        np.testing.assert_allclose(a.weights, b.weights, rtol=1e-6)
        for one, other in zip(a.watches, b.watches, strict=True):
            np.testing.assert_allclose(one.signal, other.signal, rtol=1e-3, atol=1e-5)
