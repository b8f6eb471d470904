"""A run goes back to before a client was in the model, and trains on without it; nothing recorded is changed."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from fedwarden.cli import run as run_module
from fedwarden.core.types import RoundRecord
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.whatif import decide_again
from fedwarden.store import checkpoint
from fedwarden.store.checkpoint import checkpoint_path, saved
from fedwarden.store.claim import claim
from fedwarden.store.ledger import Ledger
from fedwarden.store.word import said_in, say
from states import held

BAD = "[red]-Zürich"
NAMES = ("Basel", "Bern", "Genf", "Chur", "Zug", BAD)


def scenario(rounds=10, joins=6, **more):
    table = {
        "name": "hospitals",
        "rounds": rounds,
        "data": {"clients": 6, "names": NAMES, "joins": {BAD: joins} if joins else {}},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"workers": 1},
        "guard": {"preset": "none"},
        "attacks": [{"name": "backdoor", "clients": [BAD], "fraction": 1.0}],
    }
    return load_scenario({**table, **more})


@pytest.fixture(scope="module")
def harmed(tmp_path_factory):
    """A backdoor that came in round 6 of 10, and the run that never had it."""
    folder = tmp_path_factory.mktemp("harmed")
    simulate(scenario(), folder)
    simulate(scenario(joins=99), folder / "clean")
    return folder


@pytest.fixture
def home(harmed, workspace):
    return shutil.copytree(harmed, workspace)


def rounds(home, run):
    with Ledger(home, read_only=True) as ledger:
        return ledger.records(run)


def weight(record, client=BAD):
    return dict(zip(record.client_ids, record.weights.tolist(), strict=True)).get(client, 0.0)


def model(home, run):
    return held(checkpoint_path(home, run, 10))["params"]


def digest(path):
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def test_the_new_run_is_that_of_a_federation_that_never_had_the_attacker(call, call_json, home):
    """Bit for bit: model, accuracy and attack success."""
    before, old = digest(home / "checkpoints" / "1"), rounds(home, 1)
    assert [weight(r) > 0 for r in old] == [False] * 5 + [True] * 5
    assert list(saved(home, 1)) == [10, 9, 8, 6, 4]
    told = call_json("rollback", 1, "--before", BAD, "--reason", "plants a mark", "--by", "alice", "-q")
    assert told["rollback"] == {
        "run": 2, "from": 1, "clients": [BAD], "first": 6, "after": 4, "again": 6, "passed_over": []
    }  # fmt: skip
    new, clean = rounds(home, 2), rounds(home / "clean", 1)
    assert [weight(r) for r in new] == [0.0] * 10
    assert model(home, 2) == model(home / "clean", 1)
    for key in ("accuracy", "attack_success"):
        assert [r.metrics[key] for r in new] == [r.metrics[key] for r in clean]
    assert new[-1].metrics["attack_success"] < 0.2 < old[-1].metrics["attack_success"]
    (note,) = [n for n in new[4].notes if BAD in n.clients]
    assert note.values == {"by": "operator alice", "reason": "run 1 is rolled back to its round 4: plants a mark"}
    assert digest(home / "checkpoints" / "1") == before
    assert [r.metrics for r in rounds(home, 1)] == [r.metrics for r in old]
    for command in (["doctor"], ["show", 2], ["runs"], ["backup", home / "w.tar"]):
        assert call(*command)[0] == 0
    assert call("restore", home / "w.tar", "--home", home / "there")[0] == 0
    assert list(saved(home / "there", 2)) == list(saved(home, 2)) == [10, 9, 8, 6, 4]


def test_what_it_prints(call, home):
    code, out, err = call("rollback", "hospitals", f"--before={BAD}", "-q")
    assert (code, err) == (0, "")
    assert out.startswith(
        f"run 2 goes on after round 4: round 6 is the first of run 1 with client {BAD} in the model; "
        f"6 rounds to play again without client {BAD}\n"
    )
    assert "fedwarden show 2" in out


def test_from_the_start_where_no_checkpoint_is_older(call, home):
    for path in [path for t, path in saved(home, 1).items() if t < 6]:
        path.unlink()
    code, out, _ = call("rollback", 1, "--before", BAD)
    assert code == 0
    assert out.startswith("run 2 begins anew, without an older checkpoint: round 6 is the first of run 1")
    assert "10 rounds to play again" in out
    assert model(home, 2) == model(home / "clean", 1)


@pytest.mark.parametrize("damage", ["cut off", "another run's", "another round's"])
def test_a_damaged_checkpoint_is_passed_over(call, home, damage):
    path = checkpoint_path(home, 1, 5)
    if damage == "cut off":
        path.write_bytes(checkpoint_path(home, 1, 4).read_bytes()[:-1])
    else:
        shutil.copy(checkpoint_path(home / ("" if damage == "another round's" else "clean"), 1, 8), path)
    code, out, err = call("rollback", 1, "--before", BAD)
    assert code == 0
    assert "run 2 goes on after round 4" in out
    assert "a checkpoint was passed over: " in err
    assert "round-000005.safetensors" in err
    checkpoint_path(home, 1, 4).write_bytes(b"nonsense")
    code, out, err = call("rollback", 1, "--before", BAD)
    assert "run 3 begins anew" in out
    assert err.count("round-000004.safetensors") == err.count("a checkpoint was passed over") == 1
    assert model(home, 3) == model(home / "clean", 1)


def test_another_round_and_several_clients(call, home):
    code, out, err = call("rollback", 1, "--before", BAD, "--round", 9)
    assert "run 2 goes on after round 8" in out
    assert f"3 rounds with client {BAD} in the model stay" in err
    assert [weight(r) > 0 for r in rounds(home, 2)] == [False] * 5 + [True] * 3 + [False] * 2
    code, out, _ = call("rollback", 1, "--before", BAD, "--before", "Bern", "--before", BAD)
    assert code == 0
    assert f"run 3 begins anew, without an older checkpoint: round 1 is the first of run 1 with clients {BAD}" in out
    assert [(weight(r), weight(r, "Bern")) for r in rounds(home, 3)] == [(0.0, 0.0)] * 10


def test_what_the_operator_said_is_carried_over(call, home):
    """What held by then in the same rounds; what was said later from the first round that is played again."""
    with Ledger(home) as ledger:
        for kind, client, t in (
            ("trust", "Basel", 2), ("exclude", "Bern", 7), ("exclude", "Genf", None), ("exclude", BAD, 7),
            ("readmit", BAD, 8), ("trust", BAD, 9),
        ):  # fmt: skip
            said = say(ledger, 1, kind, client, "alice", "knows")
            ledger.db.execute("UPDATE word SET round = ? WHERE number = ?", (t, said.number))
    assert call("rollback", 1, "--before", BAD, "-q")[0] == 0
    with Ledger(home, read_only=True) as ledger:
        words = [(s.kind, s.client, s.round) for s in said_in(ledger, 2)]
        assert [s.round for s in said_in(ledger, 1)] == [2, 7, None, 7, 8, 9]
    assert words == [
        ("trust", "Basel", 2), ("exclude", "Bern", 5), ("exclude", "Genf", 5), ("exclude", BAD, 5), ("readmit", BAD, 5),
        ("trust", BAD, 5), ("exclude", BAD, 5),
    ]  # fmt: skip
    assert [weight(r) for r in rounds(home, 2)] == [0.0] * 10
    assert [weight(r, "Bern") > 0 for r in rounds(home, 2)] == [True] * 4 + [False] * 6


def test_one_that_was_killed_is_resumed_to_the_same_bits(call, home, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run_module.Monitor, "on_round", lambda self, record: (_ for _ in ()).throw(KeyboardInterrupt))
        code, _, err = call("rollback", 1, "--before", BAD, "-q")
    assert code == 130
    assert "interrupted after round 5 of 10; continue with: fedwarden run --resume 2" in err
    assert call("run", "--resume", 2, "-q")[0] == 0
    assert model(home, 2) == model(home / "clean", 1)

    def full(*arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", full)
        assert call("rollback", 1, "--before", BAD, "-q")[0] == 2
    with Ledger(home) as ledger:
        assert [run.id for run in ledger.runs()] == [2, 1]
    assert call("rollback", 1, "--before", BAD, "-q")[0] == 0


def test_what_cannot_be_rolled_back_ends_in_one_line_and_records_nothing(call, home):
    with Ledger(home) as ledger:
        ledger.db.execute("UPDATE run SET config = json_set(config, '$.rounds', 5) WHERE id = 1")
        for table in ("round", "watch", "remark", "report"):
            ledger.db.execute(f"DELETE FROM {table} WHERE round > 5")
    assert "no run 9 in " in call("rollback", 9, "--before", BAD)[2]
    assert call("rollback", 1, "--before", "Basle")[2] == "error: run 1 has no client 'Basle'; did you mean 'Basel'?\n"
    line = f"error: run 1: {BAD} had no weight in any round; nothing to roll back\n"
    assert call("rollback", 1, "--before", BAD) == (2, "", line)
    assert "run 1 has no round 6; expected 1 to 5" in call("rollback", 1, "--before", "Bern", "--round", 6)[2]
    assert (
        "no checkpoint of a server's model to write; leave out --output"
        in call("rollback", 1, "--before", "Bern", "-o", home / "m")[2]
    )
    assert "Missing option '--before'" in call("rollback", 1)[2]
    with Ledger(home) as ledger:
        ledger.finish(1, "running")
    with claim(home, 1):
        assert "run 1 is still running" in call("rollback", 1, "--before", "Bern")[2]
    with Ledger(home) as ledger:
        assert [run.id for run in ledger.runs()] == [1]


def test_a_round_that_a_repair_left_out_may_have_had_the_client(call, home):
    with Ledger(home) as ledger:
        for table in ("round", "watch", "remark", "report"):
            ledger.db.execute(f"DELETE FROM {table} WHERE round = 3")
    assert "run 2 begins anew" in call("rollback", 1, "--before", BAD, "-q")[1]


@pytest.mark.parametrize("preset", ["auto", "pid_made", "watch"])
def test_every_guard_leaves_it_out_and_its_memory_goes_on(call, workspace, preset):
    """A run that is rolled back twice is the same twice."""
    simulate(scenario(8, guard={"preset": preset}), workspace)
    for run in (2, 3):
        assert call("rollback", 1, "--before", BAD, "-q")[0] == 0
        assert [weight(r) for r in rounds(workspace, run)] == [0.0] * 8
    assert held(checkpoint_path(workspace, 2, 8)) == held(checkpoint_path(workspace, 3, 8))
    with Ledger(workspace) as ledger:
        _, again = decide_again(ledger.run(2), rounds(workspace, 2), said=said_in(ledger, 2))
    for one, two in zip(rounds(workspace, 2), again, strict=True):
        np.testing.assert_array_equal(one.weights > 0, two.weights > 0)
        assert one.excluded == two.excluded
    assert call("doctor")[0] == 0


def test_a_reply_that_is_on_its_way_at_the_checkpoint_has_no_weight(call, workspace):
    plan = {"asynchronous": {"buffer": 3, "speeds": 10.0}, "guard": {"preset": "auto"}}
    simulate(scenario(joins=0, **plan), workspace)
    flying = [r.round for r in rounds(workspace, 1) if BAD in r.client_ids]
    at = max(t for t in saved(workspace, 1) if t < flying[-1])
    assert call("rollback", 1, "--before", BAD, "--round", at + 1, "-q")[0] == 0
    new = rounds(workspace, 2)
    assert any(weight(r) > 0 for r in new[:at])
    assert [weight(r) for r in new[at:]] == [0.0] * (10 - at)


def test_a_servers_run_waits_for_its_server(call, call_json, workspace):
    with Ledger(workspace) as ledger:
        ledger.start("wards", "nvflare", {"rounds": 4}, {})
        for t in (1, 2, 3, 4):
            one = np.ones(2)
            ledger.append(1, RoundRecord(t, ("north", "-west"), one, np.array([1.0, float(t > 2)]), flagged=one > 2))
        path = checkpoint_path(workspace, 1, 2)
        checkpoint.save(path, {"round": 2, "warden": {}}, ledger.run(1).identity)
        ledger.finish(1, "failed")
    assert "no checkpoint of a server's model" in call("rollback", 1, "--before=-west", "-o", workspace / "m")[2]
    _, out, _ = call("rollback", 1, "--before", "-west")
    assert "run 2 goes on after round 2: round 3 is the first" in out
    assert "start from the one that the framework saved in round 2" in out
    assert "resume=True: it continues run 2" in out
    told = call_json("rollback", 1, "--before", "north")
    assert (told["run"], told["after"], told["again"], told["output"]) == (3, 0, 4, None)
    with Ledger(workspace) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()[:2]] == [(3, "interrupted", 0), (2, "interrupted", 2)]


def test_the_model_of_a_server_is_written_by_the_names_of_its_arrays(call, workspace):
    sent = {"fc.weight": torch.arange(6.0).reshape(2, 3), "steps": torch.tensor(7)}
    with Ledger(workspace) as ledger:
        ledger.start("wards", "appfl", {}, {})
        for t in (1, 2):
            one = np.ones(1)
            ledger.append(1, RoundRecord(t, ("north",), one, one * (t - 1), flagged=one > 2))
        state = {"round": 1, "warden": {}, "model": sent}
        checkpoint.save(checkpoint_path(workspace, 1, 1), state, ledger.run(1).identity)
        ledger.finish(1, "done")
    file = workspace / "model.safetensors"
    code, out, err = call("rollback", 1, "--before", "north", "-o", file)
    assert (code, "has no model" in out) == (0, False)
    assert "2 arrays of round 1" in err
    assert {name: value.tolist() for name, value in load_file(file).items()} == {k: v.tolist() for k, v in sent.items()}
    assert "is there already" in call("rollback", 1, "--before", "north", "-o", file)[2]
    with Ledger(workspace) as ledger:
        assert len(ledger.runs()) == 2
