"""Signals, killed parents, stopped workers: a clean end, nobody left behind, the same bits."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import fedwarden.sim.training.pool as module
from fedwarden.cli import ENDING, main
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.training.limits import cores
from fedwarden.sim.training.pool import Pool

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
ROUNDS = 60
TINY = f"""
name = "tiny"
rounds = {ROUNDS}
data.clients = 6
model = {{name = "mlp", hidden = [8]}}
train = {{momentum = 0.9, workers = 2, group = 1, patience = 20.0}}
attacks = [{{name = "label_flip", count = 1, start = 2, ramp = 3}}]
guard = {{preset = "pid_made", options = {{k = 1.2}}}}
"""


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.mark.parametrize("number", ENDING, ids=lambda n: n.name)
def test_a_signal_ends_a_run_as_ctrl_c_does(
    number, start, tiny, tmp_path, committed, state_of, contents, eventually, workers_of
):
    home = tmp_path / "home"
    call = start("run", tiny, "--home", home, "--set", "rounds=100000")
    eventually(lambda: committed(home) >= 2)
    call.kill(number)
    call.kill(number)  # the second does not cut off what the first set going
    assert call.wait() == 128 + number
    assert state_of(home) == "interrupted"
    assert workers_of() == []
    done, *command = call.lines()[-1].partition("; continue with: fedwarden ")
    assert done == f"error: interrupted after round {committed(home)} of 100000"
    again = start(*shlex.split(command[1]), "--set", f"rounds={committed(home) + 2}", "--quiet")
    assert again.wait() == 0
    assert again.lines() == []


def test_a_signal_that_is_ignored_stays_ignored(start, tiny, tmp_path, committed, state_of, eventually):
    """As SIGHUP is under nohup."""
    call = start("run", tiny, "--home", tmp_path / "home", ignored=["SIGHUP"])
    eventually(lambda: committed(tmp_path / "home") >= 2)
    call.kill(signal.SIGHUP)
    assert call.wait() == 0
    assert state_of(tmp_path / "home") == "done"


def test_only_the_command_line_handles_signals_and_puts_them_back(capsys):
    """The package is imported here, and the command line has run."""
    before = [signal.getsignal(number) for number in ENDING]
    assert set(before) <= {signal.SIG_DFL, signal.SIG_IGN}  # the second where these tests run under nohup
    assert main(["--version"]) == 0
    assert [signal.getsignal(number) for number in ENDING] == before


ENDED = {  # the last line of a command that a signal ended
    "audit": r"error: interrupted; continue with: fedwarden audit \S+audit.toml (--set \S+ )+--resume 1",
    "tune": "error: interrupted",
}


@pytest.mark.parametrize("command", ENDED)
def test_a_signal_ends_other_commands_too(command, start, tiny, tmp_path, eventually, workers_of):
    file = tiny if command == "tune" else EXAMPLES / "audit.toml"
    call = start(command, file, "--set", "rounds=5000", "--set", "train.workers=2", "--set", "train.group=1")
    eventually(workers_of)
    call.kill(signal.SIGTERM)
    assert call.wait() == 128 + signal.SIGTERM
    assert re.fullmatch(ENDED[command], call.lines()[-1])
    eventually(lambda: workers_of() == [])  # one that was just being started sees by itself


def test_a_signal_outside_a_run(monkeypatch, tiny, capsys):
    def end(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)

    monkeypatch.setattr("fedwarden.cli.run.load_scenario", end)
    assert main(["run", str(tiny)]) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize("moment", ["starting", "training", "stopped"])
def test_workers_leave_when_their_parent_is_killed(moment, start, tiny, tmp_path, committed, eventually, workers_of):
    home = tmp_path / "home"
    call = start("run", tiny, "--home", home, "--set", "rounds=100000", "--set", "train.epochs=20")
    eventually(workers_of)
    if moment != "starting":
        eventually(lambda: all(b"(deleted)" in Path(f"/proc/{w}/maps").read_bytes() for w in workers_of()))  # shared
        last = committed(home)
        eventually(lambda: committed(home) > last)
    (worker,) = workers_of()
    if moment == "stopped":
        os.kill(worker, signal.SIGSTOP)  # all of its threads, one after the other; only then it counts
        states = [t / "stat" for t in Path(f"/proc/{worker}/task").iterdir()]
        eventually(lambda: {state.read_text().rpartition(") ")[2][0] for state in states} == {"T"})
    call.kill()
    call.wait()
    eventually(lambda: workers_of() == [])
    assert not [p for p in os.listdir("/dev/shm") if p.startswith("fedwarden")]


@pytest.fixture(scope="module")
def scenario():
    """Groups that take long enough for a worker to get some."""
    table = {"rounds": 4, "data": {"clients": 12}, "model": {"name": "mlp", "hidden": [32]}}
    return load_scenario({**table, "train": {"momentum": 0.9, "group": 1, "epochs": 15, "workers": 1}})


def models(federation, pool, count):
    """The models of some rounds, each from the mean of the last."""
    params, found = federation.params, []
    for t in range(1, count + 1):
        found.append(pool.train(params, t, federation.clients).clone())
        params = found[-1].mean(dim=0)
    return found


@pytest.fixture(scope="module")
def alone(scenario):
    federation = Federation(scenario)
    with Pool(federation.engine, None, 1) as pool:
        return federation, models(federation, pool, 4)


@pytest.fixture
def pooled(alone):
    """A pool with one worker that is up, of little patience."""
    federation, want = alone
    with Pool(federation.engine, federation.recipe, 2, patience=0.5) as pool:
        up(pool)
        yield pool, federation, want


def up(pool):
    deadline = time.monotonic() + 120
    while not pool.workers[0].ready:
        assert time.monotonic() < deadline
        pool.workers[0].ready = pool.workers[0].hear(0.1) == b"ready\n"


def same(found, want):
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM])
def test_a_worker_that_stops_or_dies_is_replaced_and_the_bits_are_the_same(number, pooled):
    pool, federation, want = pooled
    (first,) = pool.workers
    os.kill(first.process.pid, number)
    assert same(models(federation, pool, 1), want[:1])
    models(federation, pool, 1)  # a killed one may have been seen dead only now
    assert first.process.returncode in (-number, -signal.SIGKILL)  # so it wakes and writes no more
    (second,) = pool.workers
    assert second is not first
    up(pool)
    assert same(models(federation, pool, 4), want)
    assert second.fruitless == 0  # it finished a task


def test_a_stopped_worker_that_does_not_read_its_task(alone):
    """Nor do the rows of a client that changed, which are shared, hold up the others."""
    federation, _ = alone
    rows = {c: r[::-1].copy() for c, r in federation.engine.rows.items()}
    few = list(federation.clients)[:2]
    with Pool(federation.engine, federation.recipe, 2, patience=0.5) as pool:
        up(pool)
        os.kill(pool.workers[0].process.pid, signal.SIGSTOP)
        found = pool.train(federation.params, 1, few, rows).clone()
        assert not pool.workers[0].alive
    with Pool(federation.engine, None, 1) as one:
        assert torch.equal(found, one.train(federation.params, 1, few, rows))


def test_a_worker_that_never_works_is_not_started_for_ever(alone, monkeypatch):
    federation, want = alone
    monkeypatch.setattr(module.bootstrap, "__file__", os.devnull)  # ends at once and says nothing
    with Pool(federation.engine, federation.recipe, 2) as pool:
        started = set()
        for _ in range(8):
            assert same(models(federation, pool, 1), want[:1])
            started.add(pool.workers[0].process.pid)
            pool.workers[0].process.wait()
    assert len(started) == 1 + module.FRUITLESS


@pytest.mark.parametrize("asked", [cores() + 1, 100_000])
def test_more_workers_than_cores_are_not_started(asked, start, tiny, tmp_path, committed, eventually, workers_of):
    home = tmp_path / "home"
    call = start("run", tiny, "--home", home, "--set", "rounds=100000", "--set", f"train.workers={asked}")
    eventually(lambda: committed(home) >= 1)
    assert len(workers_of()) == min(cores(), 6) - 1
    call.kill(signal.SIGTERM)
    call.wait()
    told = f"train.workers = {asked}: {min(cores(), 6)} are used, at most one per core and group of clients"
    assert call.lines()[0] == told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda n: n.name)
def test_a_study_that_is_ended_leaves_nobody_and_goes_on_later(number, tmp_path, eventually):
    marker = f"FEDWARDEN_CACHE={tmp_path / 'cache'}"
    env = {**os.environ, "FEDWARDEN_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    options = ["--seeds", "1", "--rounds", "5", "--defence", "FedAvg", "--attack", "sign flip"]
    command = [sys.executable, "-m", "fedwarden", "bench", "defences", "--home", str(tmp_path), *options]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kept = tmp_path / "studies" / "defences-digits-5.jsonl"
    try:
        eventually(lambda: kept.is_file() and kept.read_text().count("\n") >= 1, seconds=240)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()

    def left():
        return [p for p in os.listdir("/proc") if p.isdigit() and marker in _environment(p)]

    eventually(lambda: left() == [])
    if number == signal.SIGTERM:
        assert process.returncode == 128 + number
        assert re.fullmatch(
            r"error: interrupted; \d of 6 runs are kept, and the same command continues from there\n", err
        )
        assert not list(tmp_path.glob("fedwarden-*"))
    assert "Traceback" not in err
    assert "resource_tracker" not in err
    done = kept.read_text().count("\n")
    again = subprocess.run([*command, "--json"], env=env, capture_output=True, text=True, check=True)
    assert kept.read_text().count("\n") > done >= 1
    assert again.stderr == ""


def _environment(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
