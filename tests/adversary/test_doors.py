"""Backups, restores, migrations and prunes that would lose something."""

import gzip
import os
import sqlite3
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.core.types import RoundRecord
from fedwarden.store import earlier, outbox
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.schema import SCHEMA

OLD = Path(__file__).parents[1] / "store" / "ledgers" / f"schema-{SCHEMA - 1}.sqlite.gz"
NOBODY = RoundRecord(1, (), np.zeros(0), np.zeros(0))
ROUNDS = "SELECT * FROM round ORDER BY run, round"


def schema(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Five runs: with an alert pending, done, running elsewhere, interrupted long ago, done."""
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    with Ledger() as ledger:
        for state in ("done", "done", "running", "running", "done"):
            run = ledger.start(state, "test", {}, {})
            ledger.append(run, NOBODY, 1.0 if run == 4 else None)
            ledger.finish(run, state)
        outbox.put(ledger, 1, "webhook", {"name": "webhook"}, 1, [{"kind": "excluded"}])
    return tmp_path / "home"


def refused(capsys, *command):
    """The one line with which a command is refused."""
    code, err = main([*map(str, command)]), capsys.readouterr().err
    assert (code, err.count("\n")) == (2, 1), err
    return err


@pytest.mark.parametrize("file", ["home/ledger.sqlite", "home/ledger.sqlite-wal", "pipe", "there"])
@pytest.mark.parametrize("command", [["backup"], ["export", "5", "--to", "csv", "-o"]])
def test_no_output_takes_the_place_of_a_ledger_or_a_device(home, capsys, command, file):
    """As root ``backup /dev/null --force`` would leave a machine without its /dev/null."""
    os.mkfifo("pipe")
    Path("there").mkdir()
    before = (home / "ledger.sqlite").read_bytes()
    assert "give another file" in refused(capsys, *command, file, "--force")
    assert (home / "ledger.sqlite").read_bytes() == before
    assert Path("pipe").is_fifo()


@pytest.mark.parametrize("kind", ["pipe", "folder", "endless", "empty", "no ledger"])
def test_what_is_no_backup_is_one_line_and_never_waited_for(home, capsys, kind):
    file = Path("/dev/zero" if kind == "endless" else "w.tar")
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    elif kind != "endless":
        with tarfile.open(file, "w") as made:
            if kind == "no ledger":
                made.addfile(tarfile.TarInfo("checkpoints/1/round-000001.safetensors"))
    err = refused(capsys, "restore", file, "--home", "elsewhere")
    assert f"{file} is no backup of a workspace" in err
    assert ".restore-" not in err
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize("mode", ["WAL", "DELETE"])
def test_of_two_migrations_at_once_the_copy_of_the_one_that_was_made_stays(tmp_path, monkeypatch, mode):
    """Both choose a name for their copy before either has the ledger for itself."""
    path, both, journal = tmp_path / "ledger.sqlite", Barrier(2), earlier.journal
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    with closing(sqlite3.connect(path)) as db:
        before = db.execute(ROUNDS).fetchall()
        db.execute(f"PRAGMA journal_mode = {mode}").fetchall()

    def together(*given):
        both.wait()
        journal(*given)

    monkeypatch.setattr(earlier, "journal", together)

    def migrate():
        try:
            earlier.migrate(path)
        except LedgerError as error:
            return str(error)

    with ThreadPoolExecutor(2) as pool:
        told = list(pool.map(lambda _: migrate(), range(2)))
    copies = list(tmp_path.glob("ledger.sqlite.schema-*"))
    if told.count(None):  # where each waits for the other, neither changes anything
        assert schema(path) == SCHEMA
        assert [schema(copy) for copy in copies] == [SCHEMA - 1]
        with closing(sqlite3.connect(copies[0])) as db:
            assert db.execute(ROUNDS).fetchall() == before
    else:
        assert (schema(path), copies) == (SCHEMA - 1, [])
    assert all("another process" in words for words in told if words)


def test_prune_loses_no_alert_and_no_run_of_another_machine(home, capsys):
    locks = {path: path.read_bytes() for path in home.glob("locks/*")}
    assert main(["prune", "--keep", "1", "--dry-run", "--json"]) == 0
    assert '"removed": [\n    2\n  ]' in capsys.readouterr().out
    assert {path: path.read_bytes() for path in home.glob("locks/*")} == locks
    assert main(["prune", "--keep", "1", "--unfinished"]) == 0
    with Ledger(read_only=True) as ledger:
        assert [run.id for run in ledger.runs()] == [5, 3]


def test_a_damaged_message_ends_no_command_for_good(home, capsys):
    """The doctor that every command sends to finds it, and saves the others."""
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("INSERT INTO outbox SELECT run, sink, 2, round, '[]', made, 0, 0, '', NULL FROM outbox LIMIT 1")
    assert "table outbox: column content" in refused(capsys, "show", "1")
    assert main(["doctor"]) == 1
    assert "damaged outbox: run 1" in capsys.readouterr().out
    assert main(["doctor", "--repair"]) == 0
    with Ledger(read_only=True) as ledger:
        assert [(m.number, m.content) for m in outbox.messages(ledger)] == [(1, {"kind": "excluded"})]
    assert main(["show", "1"]) == 0
