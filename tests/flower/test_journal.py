"""A server that is killed and started again goes on from the last committed round, as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.serverapp import strategy as flower
from flwr.supercore.task_identity import TaskIdentity
from safetensors import safe_open

from fedwarden import Warden, cli
from fedwarden.flower import Guarded
from fedwarden.sim.whatif import decide_again
from fedwarden.store import checkpoint
from fedwarden.store.checkpoint import CheckpointError, checkpoint_path
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import RoundStory
from one_story import agree

from .nodes import FragileGrid, Killed, LocalGrid, honest, model, shifted, state

NODES = range(100, 108)
DRIFTER = 103


def crowd():
    """One node attacks a little: it takes some rounds of evidence to find it."""
    return {node: shifted(0.02, 0.02) if node == DRIFTER else honest(node) for node in NODES}


def test_what_is_said_of_a_node_is_the_same_everywhere(tmp_path):
    nodes = {node: shifted(2.0) if node == DRIFTER else honest(node) for node in NODES}
    Guarded(flower.FedAvg(), "pid_made", home=tmp_path).start(LocalGrid(nodes), model(), 3)
    assert agree(tmp_path, 1)[str(DRIFTER)].startswith(f"Client {DRIFTER} was excluded in round 2: ")


BASES = {
    "FedAvg": flower.FedAvg,
    "FedAvgM": lambda: flower.FedAvgM(server_momentum=0.9),
    "FedAdam": flower.FedAdam,
    "DP adaptive": lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(), noise_multiplier=1e-9, num_sampled_clients=8, clipped_count_stddev=1e-6
    ),
}


@pytest.mark.parametrize("base", BASES)
def test_a_resumed_run_ends_as_one_that_was_never_cut(base, tmp_path):
    """The server that goes on has drawn another secret; clients in doubt take the turns of the recorded one."""
    random.seed(0)
    whole = Guarded(BASES[base](), Warden.preset("auto", secret=7), name="whole", home=tmp_path)
    expected = whole.start(LocalGrid(crowd()), model(), 6)

    random.seed(0)
    with pytest.raises(Killed):
        Guarded(BASES[base](), Warden.preset("auto", secret=7), name="cut", home=tmp_path).start(
            FragileGrid(crowd(), dies_in=4), model(), 6
        )
    again = Guarded(BASES[base](), name="cut", home=tmp_path, resume=True)
    grid = LocalGrid(crowd())
    result = again.start(grid, model(seed=9), 6)

    assert again.done == 3
    assert sorted(result.train_metrics_clientapp) == [4, 5, 6]
    for name, value in state(expected.arrays).items():
        np.testing.assert_allclose(state(result.arrays)[name], value, rtol=1e-5, atol=1e-6)
    with Ledger(tmp_path) as ledger:
        first, second = (ledger.records(ledger.run(name).id) for name in ("whole", "cut"))
        assert len(ledger.runs()) == 2
        assert ledger.run("cut").state == "done"
        assert ledger.run("whole").config["secret"] == ledger.run("cut").config["secret"] == 7
    assert again.warden.guard.secret == 7
    for a, b in zip(first, second, strict=True):
        assert a.round == b.round
        assert a.excluded == b.excluded
        weights = [dict(zip(r.client_ids, r.weights.tolist(), strict=True)) for r in (a, b)]
        assert weights[0] == pytest.approx(weights[1])
        scores = [dict(zip(r.client_ids, r.watches[0].scores.tolist(), strict=True)) for r in (a, b)]
        assert scores[0] == pytest.approx(scores[1], rel=1e-3, abs=1e-5)


def test_a_run_without_a_checkpoint_goes_on_with_the_recorded_secret(tmp_path):
    with pytest.raises(Killed):
        Guarded(flower.FedAvg(), home=tmp_path).start(FragileGrid(crowd(), dies_in=1), model(), 2)
    with Ledger(tmp_path) as ledger:
        secret = ledger.run(1).config["secret"]
    again = Guarded(flower.FedAvg(), home=tmp_path, resume=True)
    again.start(LocalGrid(crowd()), model(), 2)
    with Ledger(tmp_path) as ledger:
        assert ledger.run(1).config["secret"] == again.warden.guard.secret == secret
        assert again.journal.recorder.run == 1


def test_a_replay_of_a_recorded_run_draws_the_same_turns(tmp_path):
    guarded = Guarded(flower.FedAvg(), home=tmp_path)
    guarded.start(LocalGrid(crowd()), model(), 12)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
        _, replayed = decide_again(ledger.run(1), records)
    turns = [[RoundStory(r).in_doubt.get(str(DRIFTER)) for r in found] for found in (records, replayed)]
    assert turns[0] == turns[1]
    assert "on trial" in turns[0]


def test_without_an_unfinished_run_a_new_one_is_started(tmp_path):
    for resume in (False, True):
        guarded = Guarded(flower.FedAvg(), home=tmp_path, resume=resume)
        guarded.start(LocalGrid({n: honest(n) for n in NODES}), model(), 1)
        assert guarded.done == 0
    with Ledger(tmp_path) as ledger:
        assert [r.state for r in ledger.runs()] == ["done", "done"]


def test_a_finished_number_of_rounds_gives_the_model_back(tmp_path):
    with pytest.raises(Killed):
        Guarded(flower.FedAvg(), home=tmp_path).start(FragileGrid(crowd(), dies_in=3), model(), 6)
    again = Guarded(flower.FedAvg(), home=tmp_path, resume=True)
    grid = LocalGrid(crowd())
    result = again.start(grid, model(), 2)
    assert grid.asked == []
    assert set(state(result.arrays)) == set(state(model()))


def suicide(home):
    """A server that is killed with -9 in its fourth round."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    grid = FragileGrid(crowd(), dies_in=4, how=lambda: os.kill(os.getpid(), signal.SIGKILL))
    Guarded(flower.FedAvg(), home=home).start(grid, model(), 6)


def test_a_server_goes_on_from_a_run_that_was_rolled_back(tmp_path, capsys):
    """The file has the model of the round that it goes on from."""
    file, args = tmp_path / "model.safetensors", ["--before", str(DRIFTER), "--round", "5"]
    Guarded(flower.FedAdam(), Warden.preset("auto", secret=7), home=tmp_path).start(LocalGrid(crowd()), model(), 6)
    capsys.readouterr()
    assert cli.main(["rollback", "1", *args, "-o", str(file), "--home", str(tmp_path)]) == 0
    told = capsys.readouterr()
    assert "run 2 goes on after round 4" in told.out
    assert "resume=True: it continues run 2" in told.out
    assert "4 rounds with client 103 in the model stay" in told.err
    with safe_open(file, "np") as written:
        sent = {name: written.get_tensor(name) for name in written.keys()}  # noqa: SIM118
    again = Guarded(flower.FedAdam(), home=tmp_path, resume=True)
    again.start(LocalGrid(crowd()), model(seed=9), 6)
    after_four = checkpoint.load(checkpoint_path(tmp_path, 1, 4))["model"]
    assert list(sent) == sorted(after_four["names"])
    for name, value in zip(after_four["names"], after_four["arrays"], strict=True):
        np.testing.assert_array_equal(sent[name], value.numpy())
    with Ledger(tmp_path) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()] == [(2, "done", 6), (1, "done", 6)]
        records = ledger.records(2)
    assert [str(DRIFTER) in r.client_ids for r in records] == [True] * 4 + [False] * 2
    assert "is rolled back to its round 4" in str(records[4].notes)
    assert cli.main(["doctor", "--home", str(tmp_path)]) == 0


@pytest.mark.slow
def test_a_server_killed_with_9_goes_on(tmp_path):
    tests = Path(__file__).resolve().parents[1]
    code = "import sys; sys.path.insert(0, sys.argv[1]); from flower.test_journal import suicide; suicide(sys.argv[2])"
    done = subprocess.run([sys.executable, "-c", code, str(tests), str(tmp_path)], capture_output=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Ledger(tmp_path) as ledger:
        assert (ledger.run().state, ledger.run().rounds) == ("interrupted", 3)
    again = Guarded(flower.FedAvg(), home=tmp_path, resume=True)
    again.start(LocalGrid(crowd()), model(), 6)
    with Ledger(tmp_path) as ledger:
        (run,) = ledger.runs()
    assert (run.state, run.rounds, again.done) == ("done", 6, 3)


def test_without_a_sound_checkpoint_a_server_does_not_start_over_what_is_there(tmp_path):
    with pytest.raises(Killed):
        Guarded(flower.FedAvg(), home=tmp_path).start(FragileGrid(crowd(), dies_in=4), model(), 6)
    for t in (1, 2, 3):
        checkpoint_path(tmp_path, 1, t).write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="no checkpoint of run 1 can be used"):
        Guarded(flower.FedAvg(), home=tmp_path, resume=True).start(LocalGrid(crowd()), model(), 6)
    with Ledger(tmp_path) as ledger:
        assert len(ledger.records(1)) == 3
