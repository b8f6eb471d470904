"""Damaged checkpoints: every changed byte is noticed, and the run continues from the one before."""

import os
import random
import shutil

import pytest
import torch
from safetensors.torch import save_file

from fedwarden.cli import main
from fedwarden.core.remembered import Remembered
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import Scenario
from fedwarden.store.checkpoint import CheckpointError, checkpoint_path, load, save
from fedwarden.store.ledger import Ledger

SEED = 20261115
TREE = {
    "round": 3,
    "params": torch.arange(40.0),
    "warden": {"histories": [{"a": [0.5, torch.ones(2)]}], "sha256:": "x"},
}


def scenario(**changes):
    table = {
        "name": "small",
        "rounds": 3,
        "data": {"clients": 4},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"workers": 1},
        "guard": {"preset": "pid_made"},
    }
    return Scenario.model_validate({**table, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """A run of three rounds, each with a checkpoint."""
    folder = tmp_path_factory.mktemp("done")
    simulate(scenario(), folder)
    return folder


@pytest.fixture
def home(done, tmp_path):
    return shutil.copytree(done, tmp_path / "home")


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """The same run to its fourth round, never cut off."""
    folder = tmp_path_factory.mktemp("four")
    return simulate(scenario(rounds=4), folder)


def of_run(home):
    with Ledger(home, read_only=True) as ledger:
        return ledger.run(1).identity


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"cannot read the checkpoint {path}"):
        load(path)


def test_every_flipped_bit_is_noticed(tmp_path):
    """Every byte of a small file, one of its bits at a time: length, header, tree, checksum, padding and tensors."""
    path = tmp_path / "x"
    save(path, TREE)
    sound = path.read_bytes()
    assert torch.equal(load(path)["params"], TREE["params"])
    rng = random.Random(SEED)
    for i in range(len(sound)):
        content = bytearray(sound)
        content[i] ^= 1 << rng.randrange(8)
        refused(path, bytes(content))


def test_a_file_cut_off_anywhere_is_noticed(tmp_path):
    path = tmp_path / "x"
    save(path, TREE)
    sound = path.read_bytes()
    for n in range(0, len(sound), 7):
        refused(path, sound[:n])
    refused(path, sound + b"\0")


def test_a_checkpoint_without_a_checksum_is_refused(tmp_path):
    save_file({"tree": torch.zeros(3, dtype=torch.uint8)}, tmp_path / "x")
    with pytest.raises(CheckpointError, match="no checksum"):
        load(tmp_path / "x")


def test_a_pipe_a_link_and_another_runs_checkpoint_are_refused_in_one_line(home, capsys):
    """None of them is waited for, and none goes on with a state that is not the run's own."""
    simulate(scenario(), home)
    for t in (1, 2, 3):
        shutil.copy(checkpoint_path(home, 2, t), checkpoint_path(home, 1, t))
    assert main(["run", "--resume", "1", "--set", "rounds=4", "--home", str(home)]) == 2
    assert "it is of another run" in (err := capsys.readouterr().err)
    assert err.count("\n") == 1
    pipe, link = checkpoint_path(home, 2, 3), checkpoint_path(home, 2, 2)
    checkpoint_path(home, 2, 1).unlink()
    shutil.move(link, home / "aside")
    link.symlink_to(home / "aside")
    pipe.unlink()
    os.mkfifo(pipe)
    assert main(["run", "--resume", "2", "--set", "rounds=4", "--home", str(home)]) == 2
    assert capsys.readouterr().err.count("no regular file") == 2


@pytest.mark.parametrize("damage", ["flipped", "cut off", "missing"])
def test_rows_of_clients_that_have_changed_are_noticed(damage, tmp_path):
    path, rows = tmp_path / "x.safetensors", tmp_path / "x.rows"
    save(path, {"seen": Remembered.of({"a": (0.5,), "b": (2.0,)})})
    assert load(path) == {"seen": {"a": (0.5,), "b": (2.0,)}}
    content = rows.read_bytes()
    rows.unlink() if damage == "missing" else rows.write_bytes(
        content[:-1] if damage == "cut off" else content[:-1] + bytes([content[-1] ^ 1])
    )
    with pytest.raises(CheckpointError, match="missing" if damage == "missing" else "have changed"):
        load(path)


@pytest.mark.parametrize("damage", ["flipped", "cut off", "empty", "another model's", "another round's", "no state"])
def test_a_damaged_newest_one_falls_back_to_the_one_before(damage, home, four, capsys):
    path = checkpoint_path(home, 1, 3)
    content = path.read_bytes()
    match damage:
        case "flipped":
            path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        case "cut off":
            path.write_bytes(content[: len(content) // 2])
        case "empty":
            path.write_bytes(b"")
        case "another model's":
            save(path, {**load(path), "params": torch.zeros(5)}, of_run(home))
        case "another round's":
            shutil.copy(checkpoint_path(home, 1, 2), path)
        case "no state":
            save(path, [1, 2], of_run(home))
    begun = []
    again = simulate(
        scenario(rounds=4), home, resume=1, on_start=lambda run, federation: begun.append(federation.round)
    )
    assert begun == [2]
    assert torch.equal(again.params, four.params)  # round 3 was played again, to the same bits
    with Ledger(home, read_only=True) as ledger:
        notes = [n for record in ledger.records(1) for n in record.notes if n.kind == "checkpoint_passed_over"]
    assert len(notes) == 1
    assert "round-000003" in str(notes[0])
    assert "continued from the one of round 2" in str(notes[0])


def test_the_note_is_said_on_standard_error(home, capsys):
    path = checkpoint_path(home, 1, 3)
    path.write_bytes(path.read_bytes()[:-1])
    assert main(["run", "--resume", "1", "--set", "rounds=4", "--home", str(home)]) == 0
    err = capsys.readouterr().err
    assert "run 1 continues after round 2 of 4" in err
    assert "warning" in err
    assert "round-000003.safetensors" in "".join(err.split())


def test_without_a_sound_one_there_is_one_clear_line(home, capsys):
    for t in (1, 2, 3):
        checkpoint_path(home, 1, t).write_bytes(b"nonsense")
    assert main(["run", "--resume", "1", "--set", "rounds=4", "--home", str(home)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: no checkpoint of run 1 can be used")
    assert err.count("\n") == 1
    assert "move" in err
    with Ledger(home, read_only=True) as ledger:
        assert (ledger.run(1).state, ledger.run(1).rounds) == ("done", 3)  # as it was
    shutil.move(home / "checkpoints" / "1", home / "aside")
    assert main(["run", "--resume", "1", "--set", "rounds=4", "--home", str(home), "--quiet"]) == 0


def test_a_round_beyond_all_rounds_does_not_hang(home):
    """The newest checkpoint is found among the files, not by counting down from the last round."""
    with Ledger(home) as ledger:
        ledger.db.execute("UPDATE round SET round = 900000000 WHERE round = 3")
        for table in ("watch", "remark", "report"):
            ledger.db.execute(f"UPDATE {table} SET round = 900000000 WHERE round = 3")
    begun = []
    simulate(scenario(rounds=4), home, resume=1, on_start=lambda run, federation: begun.append(federation.round))
    assert begun == [3]


def test_doctor_names_a_damaged_checkpoint_and_a_stray_draft(home, capsys):
    path = checkpoint_path(home, 1, 3)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    path.with_name("round-000004.safetensors.77.draft").write_bytes(b"half")
    assert main(["doctor", "--home", str(home)]) == 1
    out = capsys.readouterr().out
    assert "damaged checkpoint: " in out
    assert "round-000003.safetensors" in out
    assert "note draft: " in out
    assert main(["doctor", "--repair", "--home", str(home)]) == 1  # a checkpoint cannot be repaired, and stays
    assert path.is_file()
