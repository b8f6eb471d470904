"""A run that is killed, whose disk fills, whose workers die, again and again: nothing is lost, the bits are the same.

The instants are drawn from a seed; FEDWARDEN_FAULT_SEED sets another one.
"""

import errno
import os
import random
import signal
import time
import tomllib

import pytest
import torch

from fedwarden.core.errors import FedwardenError
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.store import checkpoint
from fedwarden.store.ledger import Ledger, LedgerError

from .damage import TIMES

pytestmark = pytest.mark.slow

FULL = 40  # times that a disk is full
SCENARIO = """
name = "tiny"
rounds = 20000
checkpoint_every = 3
data = {clients = 6, validation = 0.1}
model = {name = "mlp", hidden = [8]}
train = {momentum = 0.9, epochs = 4, workers = 2, group = 1, patience = 1.0}
attacks = [
    {name = "label_flip", clients = [0], start = 2, ramp = 3},
    {name = "free_rider", clients = [1], start = 2},
    {name = "gaussian", clients = [2], on = 1, off = 2},
]
guard = {preset = "auto"}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SCENARIO)
    return path


@pytest.fixture(scope="module")
def chance():
    seed = int(os.environ.get("FEDWARDEN_FAULT_SEED") or 327388)
    print(f"\nFEDWARDEN_FAULT_SEED={seed}")
    return random.Random(seed)


def resumed(home):
    """The option that continues the run, once it is recorded."""
    try:
        with Ledger(home, create=False) as ledger:
            return ["--resume", "1"] if ledger.runs() else []
    except LedgerError:  # not there yet
        return []


def kill_again_and_again(kills, chance, longest, start, file, tmp_path, committed, contents, eventually):
    """Kill a run so often and let it end three rounds later; how many kills came in the middle of its rounds.

    One in three comes at any instant from the start of the process on, the others when it has begun to play.
    """
    home, lock = tmp_path / "home", tmp_path / "home" / "locks" / "1"
    last = playing = 0
    for _ in range(kills):
        call = start("run", file, "--home", home, "--quiet", *resumed(home))

        def plays(pid=call.pid):
            return lock.exists() and lock.read_text().split()[:1] == [str(pid)]

        if chance.random() < 2 / 3:
            eventually(plays)
        time.sleep(longest() * chance.random())
        call.kill()
        assert call.wait() == -signal.SIGKILL, call.lines()
        playing += plays()
        for command in (["runs", "--long"], ["doctor"], ["show", "1"]) if resumed(home) else ():
            reader = start(*command, "--home", home)
            assert reader.wait() == 0, (command, reader.lines(), reader.out.read_text())
        now = committed(home)
        assert now >= last, "a committed round was lost"
        last = now
    rounds = max(last, 3) + 3
    for folder in (home, tmp_path / "whole"):
        call = start("run", file, "--home", folder, "--quiet", "--set", f"rounds={rounds}", *resumed(folder))
        assert call.wait() == 0, call.lines()
    assert contents(home) == contents(tmp_path / "whole")
    print(f"{kills} kills, {playing} of them in the middle of a round; {rounds} rounds")
    return playing


def test_many_kills(start, file, tmp_path, committed, contents, chance, eventually, workers_of):
    """One in ten comes so late that the worker may have started."""
    given = start, file, tmp_path, committed, contents, eventually
    assert kill_again_and_again(20 * TIMES, chance, lambda: 8.0 if chance.random() < 0.1 else 0.6, *given) >= 6 * TIMES
    eventually(lambda: workers_of() == [])


def full():
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_disk_that_is_full_at_random_writes(tmp_path, chance, contents, monkeypatch):
    """Of a checkpoint, which leaves half a draft, and of the ledger, which leaves a transaction open."""
    table = {**tomllib.loads(SCENARIO), "guard": {"preset": "pid_made"}, "rounds": 4 * FULL}
    scenario = load_scenario({**table, "train": {"workers": 1, "group": 2}})
    want = simulate(scenario, tmp_path / "whole")
    save, append, last, run = checkpoint.save, Ledger.append, 0, None

    def countdown(real, broken):
        left = chance.randrange(1, 9)

        def call(*args):
            nonlocal left
            left -= 1
            return (broken if left == 0 else real)(*args)

        return call

    def half(path, *args):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f"{path.name}.1.draft").write_bytes(b"half")
        raise full()

    def cut(self, run, record):
        self.db.execute("BEGIN IMMEDIATE")
        self.db.execute("DELETE FROM round WHERE run = ?", (run,))
        raise LedgerError("cannot write to the ledger: database or disk is full")

    for _ in range(FULL):
        with monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", countdown(save, half))
            patch.setattr(Ledger, "append", countdown(append, cut))
            with pytest.raises((OSError, FedwardenError), match=r"No space|full"):
                simulate(scenario, tmp_path / "home", run)
        run = 1
        with Ledger(tmp_path / "home") as ledger:
            assert ledger.last_round(1) >= last
            last = ledger.last_round(1)
            assert ledger.run(1).state == "failed"
    result = simulate(scenario, tmp_path / "home", 1)
    assert torch.equal(result.params, want.params)
    assert contents(tmp_path / "home") == contents(tmp_path / "whole")
    assert not list((tmp_path / "home").rglob("*.draft"))
