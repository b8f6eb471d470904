"""Two versions on one workspace: code of an earlier schema writes a run in a process of its own, today's looks on."""

import io
import os
import sqlite3
import subprocess
import sys
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from fedwarden.store.schema import SCHEMA

pytestmark = pytest.mark.slow

OLD, OLD_SCHEMA, ROUNDS = "99fccd8", 4, 4
CHECKOUT = Path(__file__).parents[2]
TINY = f"""
name = "tiny"
rounds = {ROUNDS}
data = {{clients = 6}}
model = {{name = "mlp", hidden = [8]}}
train = {{workers = 1}}
guard = {{preset = "auto"}}
"""
# After its second round a run waits until the file that is named first exists. Only its number and its plug-ins come
# from what is installed, which is of today.
PROGRAM = """
import importlib.metadata, pathlib, sys, time
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.1.0" if name == "fedwarden" else version(name)
importlib.metadata.entry_points = lambda **_: ()
from fedwarden.cli import main
from fedwarden.store.ledger import Ledger

append, go = Ledger.append, pathlib.Path(sys.argv[1])

def wait(self, run, record):
    append(self, run, record)
    while record.round == 2 and not go.exists():
        time.sleep(0.05)

Ledger.append = wait
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """The folder with the package of the earlier version, from the history of the checkout."""
    packed = subprocess.run(["git", "archive", OLD, "src/fedwarden"], cwd=CHECKOUT, capture_output=True)
    if packed.returncode:
        pytest.skip(f"needs a checkout with the commit {OLD}: {packed.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"


def schema(home):
    with closing(sqlite3.connect(f"file:{home / 'ledger.sqlite'}?mode=ro", uri=True)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def test_readers_migrate_nothing_and_a_writer_waits_for_the_end_of_the_old_one(
    earlier, start, tmp_path, eventually, committed
):
    home, go, file = tmp_path / "home", tmp_path / "go", tmp_path / "tiny.toml"
    file.write_text(TINY)

    def of_old(*args):
        command = [sys.executable, "-c", PROGRAM, str(go), *map(str, args), "--home", str(home)]
        env = {**os.environ, "PYTHONPATH": str(earlier), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def of_today(*args):
        call = start(*args, "--home", home)
        return call.wait(), call.out.read_text(), call.lines()

    old = of_old("run", file)
    try:
        eventually(lambda: old.poll() is not None or committed(home) == 2, 600)
        for command in (["runs"], ["show", "1"], ["doctor"], ["export", "1", "-o", "-"]):
            code, out, lines = of_today(*command)
            assert (code, bool(out)) == (0, True), lines
        code, _, lines = of_today("run", file, "--quiet")
        assert code == 2
        assert len(lines) == 1
        assert f"another process has the ledger {home / 'ledger.sqlite'} open; end it, then try again" in lines[0]
        assert schema(home) == OLD_SCHEMA
        assert not list(home.glob("*.schema-*"))
        go.touch()
        assert old.wait(600) == 0, old.stderr.read()
    finally:
        old.kill()
        old.communicate()
    assert schema(home) == OLD_SCHEMA
    assert committed(home) == ROUNDS
    assert of_today("show", "1")[1].startswith("run 1  tiny  done\n")

    code, _, lines = of_today("run", file, "--quiet")
    assert code == 0, lines
    assert [line for line in lines if f"was brought from schema {OLD_SCHEMA} to {SCHEMA}" in line] == lines
    assert schema(home) == SCHEMA
    assert [path.name for path in home.glob("*.schema-*")] == [f"ledger.sqlite.schema-{OLD_SCHEMA}-1"]
    before = (home / "ledger.sqlite").read_bytes()
    for command in (["runs"], ["run", file]):
        refused = of_old(*command)
        _, err = refused.communicate(timeout=600)
        assert refused.returncode == 2
        assert len(err.splitlines()) == 1
        assert f"schema {SCHEMA}" in err
    assert (home / "ledger.sqlite").read_bytes() == before
