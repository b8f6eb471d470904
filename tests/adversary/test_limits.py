"""Full disks, little memory, absurd sizes: one line, exit code 2, and what was committed is there to go on from."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import fedwarden.sim.training.limits as limits
import fedwarden.sim.training.pool as pool
from fedwarden.cli import main
from fedwarden.sim.training.worker import run_task

pytestmark = pytest.mark.slow

TINY = """
name = "tiny"
rounds = 12
data.clients = 6
model = {name = "mlp", hidden = [8]}
train = {momentum = 0.9, workers = 1, group = 2}
attacks = [{name = "label_flip", count = 1}]
guard = {preset = "pid_made", options = {k = 1.2}}
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("rounds=1000000000000", ["rounds", "1000000"]),
        ("rounds=0", ["rounds"]),
        ("data.clients=1000000000", ["data.clients", "1000000000"]),
        ("data.clients=100000", ["100,000 clients", "fewer clients"]),
        ("data.partition={name='shards', per_client=1000000000000}", ["per_client", "1000"]),
        ("data.reserve=1000000000000000000", ["data.reserve", "1437"]),
        ("data.partition={name='dirichlet', smallest=1000000000000}", ["1437"]),
        ("data.partition={name='parity', size=1000000000000000000}", ["size"]),
        ("attacks.0.count=1000000000000", ["count", "1000000000000"]),
        ("model.hidden=[1000000000]", ["75,000,000,010 parameters", "GB", "model.hidden"]),
        ("model.hidden=[1000000, 1000000]", ["GB", "model.hidden"]),
        ("model.hidden=[10000000000000000000000]", ["mlp"]),
        ("model.hidden=[-1]", ["mlp"]),
        ("train.batch_size=1000000000000000000", ["train.batch_size", "1000000"]),
        ("train.epochs=1000000000000", ["train.epochs", "10000"]),
        ("train.participation=0.0", ["train.participation"]),
        ("train.workers=0", ["train.workers"]),
        ("train.patience=0", ["train.patience"]),
    ],
)
def test_absurd_sizes_are_refused_in_one_line(setting, parts, tiny, tmp_path, capsys):
    assert main(["run", str(tiny), "--home", str(tmp_path / "home"), "--set", setting]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert len(err) < 500
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    "setting", ["train.participation=1e-300", "data.probe=1000000000000000000", "data.limit=1000000000000000000",
                "checkpoint_every=1000000000000000000", "train.group=1000000000000000000", "train.patience=1e300",
                "attacks.0.end=1000000000000000000", "attacks.0.ramp=1000000000000000000"]
)  # fmt: skip
def test_absurd_sizes_that_do_no_harm(setting, tiny, tmp_path):
    assert main(["run", str(tiny), "--home", str(tmp_path), "--set", setting, "--set", "rounds=2", "--quiet"]) == 0


def test_more_clients_models_than_memory(tiny, tmp_path, capsys, monkeypatch):
    """85 parameters: four copies of the model fit into 2,000 bytes, seven rows do not."""
    monkeypatch.setattr(limits, "memory_left", lambda: 2_000)
    assert main(["run", str(tiny), "--home", str(tmp_path), "--set", "model.hidden=[1]"]) == 2
    error = capsys.readouterr().err
    assert "6 models of 85 parameters" in error
    assert "data.clients, train.participation" in error


def last_line(call, *parts):
    assert call.wait() == 2, call.lines()
    error = call.lines()[-1]
    assert error.startswith("error: ")
    assert sum(line.startswith("error") for line in call.lines()) == 1
    assert "Traceback" not in call.err.read_text()
    for part in parts:
        assert part in error, error


@pytest.fixture
def whole(start, tiny, tmp_path, contents):
    assert start("run", tiny, "--home", tmp_path / "whole", "--quiet").wait() == 0
    return contents(tmp_path / "whole")


def test_a_small_address_space(start, tiny, tmp_path):
    """ulimit -v: refused before it is built."""
    call = start("run", tiny, "--home", tmp_path, "--set", "model.hidden=[400000]", limits={"RLIMIT_AS": 200_000_000})
    last_line(call, "30,000,010 parameters", "model.hidden")


@pytest.mark.parametrize("ask", [torch.empty, np.zeros], ids=["torch", "numpy"])
def test_no_memory_in_the_middle_of_a_run(ask, tiny, tmp_path, capsys, monkeypatch, contents):
    """Four petabytes are more than an address has bits for."""
    run = ["run", str(tiny), "--quiet", "--home"]
    rounds = []

    def train(*args):
        rounds.append(args[2].round)
        if rounds[-1] == 5:
            ask(10**15)
        run_task(*args)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "run_task", train)
        assert main([*run, str(tmp_path / "home")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: out of memory (")
    assert error.count("\n") == 1
    for part in ("allocate", "train.batch_size", f"continue with: fedwarden run --resume 1 --home {tmp_path / 'home'}"):
        assert part in error
    assert main([*run, str(tmp_path / "home"), "--resume", "1"]) == 0
    assert main([*run, str(tmp_path / "whole")]) == 0
    assert contents(tmp_path / "home") == contents(tmp_path / "whole")


@pytest.mark.parametrize("size", [1_000, 40_000, 90_000, 200_000])
def test_files_may_not_grow(size, start, tiny, tmp_path, contents, committed):
    """ulimit -f: too little for the ledger, for a checkpoint, for many rounds; then without the limit."""
    home, run = tmp_path / "home", ["run", tiny, "--quiet", "--set"]
    last_line(start(*run, "rounds=4000", "--home", home, limits={"RLIMIT_FSIZE": size}), str(home))
    before = committed(home)
    assert before or size < 90_000
    again = f"rounds={before + 3}"
    if before:
        assert start("run", "--resume", "1", "--quiet", "--set", again, "--home", home).wait() == 0
        assert start(*run, again, "--home", tmp_path / "other").wait() == 0
        assert contents(home) == contents(tmp_path / "other")
    else:
        assert start(*run, again, "--home", home).wait() == 0


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 400 KB."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(folder)]
    if sys.platform != "linux" or os.geteuid() or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk(start, tiny, small_disk, tmp_path, whole, contents, committed):
    home = small_disk / "home"
    long = ["run", tiny, "--home", home, "--set", "rounds=5000"]
    last_line(start(*long), "continue with: fedwarden run --resume 1")
    before = committed(home)
    assert before > 12
    last_line(start(*long, "--resume", "1"), "")  # still full: nothing is lost by trying
    assert committed(home) >= before
    subprocess.run(["mount", "-o", "remount,size=30m", str(small_disk)], check=True)
    rounds = committed(home) + 3
    assert start("run", "--resume", "1", "--home", home, "--set", f"rounds={rounds}", "--quiet").wait() == 0
    assert start("run", tiny, "--home", tmp_path / "long", "--set", f"rounds={rounds}", "--quiet").wait() == 0
    assert contents(home)[0]["round"] == contents(tmp_path / "long")[0]["round"]
    assert contents(home)[1:] == contents(tmp_path / "long")[1:]


def test_output_that_cannot_be_written(start, tiny, tmp_path, committed):
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    call = start("run", tiny, "--home", tmp_path / "home", out=Path("/dev/full"))
    last_line(call, os.strerror(errno.ENOSPC))
    assert committed(tmp_path / "home") == 12


def test_no_room_for_what_workers_share(start, tiny, tmp_path, contents, whole):
    """The run is there to be resumed with fewer workers, although it was started with more."""
    home = tmp_path / "home"
    call = start("run", tiny, "--home", home, "--set", "train.workers=2", limits={"RLIMIT_FSIZE": 350_000})
    last_line(call, "train.workers = 1", "fedwarden run --resume 1")
    again = start("run", "--resume", "1", "--home", home, "--set", "train.workers=1", "--quiet")
    assert again.wait() == 0
    assert contents(home)[0]["round"] == whole[0]["round"]
    assert contents(home)[1:] == whole[1:]
