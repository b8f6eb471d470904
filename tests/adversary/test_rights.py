"""Read access suffices to read a ledger: while it is written to, after the run, and after a writer was killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.store.connection import log_of
from fedwarden.store.ledger import Ledger

pytestmark = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user"
)
LOOK = """
import os, sys
from pathlib import Path
from fedwarden.cli import main
from fedwarden.store.ledger import Ledger
COMMANDS = (["runs"], ["show", "1"], ["export", "1", "-o", "-"], ["doctor"])
home, warm = sys.argv[1:]
for args in COMMANDS:  # everything is imported while this user may read Python's own folder
    assert main([*args, "--home", warm]) == 0
print("-----", flush=True)
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
if os.access(Path(home, "ledger.sqlite"), os.R_OK):
    with Ledger(Path(home), read_only=True) as ledger:
        print("rounds", len(ledger.records(1)), ledger.run(1).state)
print("codes", [main([*args, "--home", home]) for args in COMMANDS])
"""
DIE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_rights import fill
ledger = fill(Path(sys.argv[1]))
os._exit(0)
"""


def fill(folder, state="done"):
    """A run of three rounds in a ledger that is left open."""
    one = np.ones(2)
    ledger = Ledger(folder)
    run = ledger.start("mine", "flower", {"rounds": 3}, {})
    for t in (1, 2, 3):
        ledger.append(run, fw.RoundRecord(t, ("a", "b"), one, one / 2, flagged=one > 2))
    ledger.finish(run, state)
    return ledger


@pytest.fixture
def folder():
    """Where another user may look but not write; not below pytest's own folder, which is closed to others."""
    made = Path(tempfile.mkdtemp(prefix="fedwarden-rights-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture
def look(folder, tmp_path):
    """What another user sees of it; nothing in the folder changes by it."""

    def run():
        fill(tmp_path / "warm").close()
        before = files(folder)
        command = [sys.executable, "-c", LOOK, str(folder), str(tmp_path / "warm")]
        done = subprocess.run(command, cwd="/", capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert files(folder) == before
        return done.stdout.partition("-----")[2], done.stderr

    return run


def files(folder):
    """What is in the files, but for the index that SQLite keeps of its log."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if not path.name.endswith("-shm")}


def test_after_the_run_has_ended(folder, look):
    fill(folder).close()
    assert not log_of(folder / "ledger.sqlite").exists()
    folder.chmod(0o555)
    out, err = look()
    assert "rounds 3 done" in out
    assert "codes [0, 0, 0, 0]" in out, err


def test_while_it_is_written_to(folder, look):
    ledger = fill(folder, "running")
    try:
        assert log_of(folder / "ledger.sqlite").stat().st_size > 0
        out, err = look()
        assert "rounds 3 running" in out
        assert "codes [0, 0, 0, 0]" in out, err
    finally:
        ledger.close()


@pytest.mark.parametrize("index", [True, False], ids=["with its index", "without its index"])
def test_after_a_writer_was_killed(folder, look, index):
    """The log was not written back; without the index beside it SQLite would have to make one."""
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", DIE, str(folder), here], check=True, timeout=120)
    assert log_of(folder / "ledger.sqlite").stat().st_size > 0
    if not index:
        (folder / "ledger.sqlite-shm").unlink()
    out, err = look()
    assert "rounds 3 done" in out
    assert "codes [0, 0, 0, 0]" in out, err
    assert not [p for p in Path("/tmp").glob("fedwarden-*/ledger.sqlite") if p.parent != folder]  # no copy is left


def test_a_file_that_may_not_be_read_is_one_line(folder, look):
    fill(folder).close()
    (folder / "ledger.sqlite").chmod(0o600)
    out, err = look()
    assert "codes [2, 2, 2, 2]" in out
    assert err.count("error: cannot open the ledger") == err.count("\n") == 4


def test_closing_a_writer_leaves_nothing_in_the_log(folder):
    """Also where a reader is still there, who would keep SQLite from removing it."""
    ledger = fill(folder)
    with Ledger(folder, read_only=True) as reader:
        assert len(reader.records(1)) == 3
        ledger.close()
        log = log_of(folder / "ledger.sqlite")
        assert not log.exists() or log.stat().st_size == 0
        assert len(reader.records(1)) == 3
