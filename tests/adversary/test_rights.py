"""Read access suffices to read a ledger: while it is written to, after the run, and after a writer was killed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.store.connection import logs_of
from fedwarden.store.ledger import Ledger

root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
LOOK = """
import io, json, os, sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from fedwarden.cli import main
COMMANDS = (["runs"], ["show", "1"], ["export", "1", "-o", "-"], ["doctor"])
warm, *homes = sys.argv[1:]

def call(args, home):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*args, "--home", home])
    return [code, out.getvalue(), err.getvalue()]

for args in COMMANDS:  # everything is imported while this user may read Python's own folder
    assert call(args, warm)[0] == 0
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print(json.dumps({Path(home).name: [call(args, home) for args in COMMANDS] for home in homes}))
"""
DIE = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_rights import fill
ledger = fill(Path(sys.argv[1]))
os._exit(0)
"""
ROUNDS = 3


def fill(folder, state="done"):
    """A run of three rounds in a ledger that is left open."""
    one = np.ones(2)
    ledger = Ledger(folder)
    run = ledger.start("mine", "flower", {"rounds": ROUNDS}, {})
    for t in range(1, ROUNDS + 1):
        ledger.append(run, fw.RoundRecord(t, ("a", "b"), one, one / 2, flagged=one > 2))
    ledger.finish(run, state)
    return ledger


def files(folder):
    """What is in the files, but for the index that SQLite keeps of its log."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and "-shm" not in path.name}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What another user sees of each workspace, who may look into it but not write; nothing changes by it."""
    place = Path(tempfile.mkdtemp(prefix="fedwarden-rights-"))  # pytest's own folders are closed to others
    place.chmod(0o755)
    warm = tmp_path_factory.mktemp("warm")
    for folder in (warm, place / "ended", place / "closed"):
        fill(folder).close()
    (place / "closed" / "ledger.sqlite").chmod(0o600)
    subprocess.run([sys.executable, "-c", DIE, str(place / "killed"), str(Path(__file__).parent)], check=True)
    shutil.copytree(place / "killed", place / "moved")
    (place / "moved" / "ledger.sqlite-shm").unlink()
    homes = [place / name for name in ("ended", "closed", "killed", "moved", "live")]
    with fill(place / "live", "running"):
        for name, log in (("ended", False), ("killed", True), ("moved", True), ("live", True)):
            path = logs_of(place / name / "ledger.sqlite")[0]
            assert (path.is_file() and path.stat().st_size > 0) == log, name
        for folder in homes:
            folder.chmod(0o555)
        before = files(place)
        command = [sys.executable, "-c", LOOK, str(warm), *map(str, homes)]
        apart = place / "tmp"
        apart.mkdir()
        apart.chmod(0o777)
        env = {**os.environ, "TMPDIR": str(apart)}
        done = subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr
        assert files(place) == before
    yield {**json.loads(done.stdout), "copies": [path.name for path in apart.iterdir()]}
    shutil.rmtree(place)


@root
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("ended", id="the run has ended"),
        pytest.param("killed", id="its writer was killed and the log not written back"),
        pytest.param("moved", id="and the log has no index beside it"),
        pytest.param("live", id="it is being written to"),
    ],
)
def test_read_access_suffices(seen, name):
    assert [code for code, _, _ in seen[name]] == [0, 0, 0, 0], seen[name]
    assert len(seen[name][2][1].splitlines()) == 1 + 2 * ROUNDS  # a header, and a row for each round and client
    assert f"Sound: 1 run and {ROUNDS} rounds" in seen[name][3][1]


@root
def test_no_copy_is_left(seen):
    assert seen["copies"] == []


@root
def test_a_file_that_may_not_be_read_is_one_line(seen):
    for code, out, err in seen["closed"]:
        assert (code, out) == (2, "")
        assert " may not read " in err
        assert err.count("\n") == 1


def test_closing_a_writer_leaves_nothing_in_the_log(tmp_path):
    """Also where a reader is still there, who would keep SQLite from removing it."""
    ledger = fill(tmp_path)
    with Ledger(tmp_path, read_only=True) as reader:
        assert len(reader.records(1)) == ROUNDS
        ledger.close()
        log = logs_of(tmp_path / "ledger.sqlite")[0]
        assert not log.exists() or log.stat().st_size == 0
        assert len(reader.records(1)) == ROUNDS
