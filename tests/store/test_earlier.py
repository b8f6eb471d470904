"""Ledgers of earlier schemas, each written by the code of its time: read as they are, and brought up to date."""

import gzip
import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.store import earlier
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.record import RunRecord
from fedwarden.store.schema import SCHEMA

LEDGERS = Path(__file__).parent / "ledgers"
OLD = sorted(path.name.split(".")[0] for path in LEDGERS.glob("*.gz"))
READERS = (
    ["runs"], ["show", "1"], ["show", "1", "--all"], ["show", "1", "--round", "2"], ["show", "1", "--json"],
    ["show", "2"], ["report", "1", "-o", "report.html", "--force"], ["export", "1", "-o", "-"],
    ["export", "1", "-o", "run.json"], ["export", "1", "-o", "run.parquet"], ["send", "1", "--to", "tensorboard"],
    ["doctor"], ["runs", "--long"], ["prune", "--keep", "1", "--dry-run"], ["send", "--pending"],
    ["backup", "backup.tar", "--force"],
)  # fmt: skip


def unpacked(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ledger.sqlite").write_bytes(gzip.decompress((LEDGERS / f"{name}.sqlite.gz").read_bytes()))
    return folder


@pytest.fixture(params=OLD)
def old(request, tmp_path, monkeypatch):
    """A workspace with a guarded run of three rounds and an unguarded one, as an earlier version left it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    return unpacked(request.param, tmp_path / "home")


def digest(home):
    return hashlib.sha256((home / "ledger.sqlite").read_bytes()).hexdigest()


def schema(path):
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA user_version").fetchone()[0]


def everything(home):
    """All that is read of a workspace, without the numbers that a reader gives to clients."""
    with Ledger(home, read_only=True) as ledger:
        runs = ledger.runs()
        told = [RunRecord.read(ledger, run.id) for run in runs]
        records = [[asdict(r) for r in ledger.records(run.id)] for run in runs]
        return [asdict(run) for run in runs], records, [(r.said, r.observations, r.reported) for r in told]


def test_there_is_one_of_every_schema():
    assert [f"schema-{n}" for n in range(4, SCHEMA)] == OLD


def test_every_command_reads_it_and_writes_nothing(old, capsys):
    before = digest(old)
    for command in READERS:
        assert main(command) == 0, command
        out, err = capsys.readouterr()
        assert "unknown key" not in out + err
    assert digest(old) == before
    assert not list(old.glob("ledger.sqlite.*"))
    exported = json.loads((old.parent / "run.json").read_text())
    assert set(exported["table"]["round"]) == {1, 2, 3}
    assert set(exported["table"]["client"]) == set("0123456")


def test_what_is_read_is_what_the_columns_say(old):
    """Against the JSON of the file itself."""
    with closing(sqlite3.connect(old / "ledger.sqlite")) as db:
        clients, weights, excluded = db.execute(
            "SELECT clients, weights, excluded FROM round WHERE run = 1 AND round = 3"
        ).fetchone()
        scores = dict(db.execute("SELECT watch, score FROM watch WHERE run = 1 AND round = 3").fetchall())
        metrics = dict(db.execute("SELECT name, value FROM metric WHERE run = 1 AND round = 3").fetchall())
    with Ledger(old, read_only=True) as ledger:
        record = ledger.record(1, 3)
    assert list(record.client_ids) == json.loads(clients)
    assert list(record.excluded) == json.loads(excluded)
    np.testing.assert_equal(record.weights.tolist(), json.loads(weights))
    assert record.metrics == metrics
    for watch in record.watches:
        found = [np.nan if v is None else v for v in json.loads(scores[watch.name])]
        np.testing.assert_equal(watch.scores.tolist(), found)


def test_only_replay_and_resume_may_refuse_and_name_the_version_to_use(old, capsys):
    before = digest(old)
    known = {main(["show", "1"]): capsys.readouterr().out}[0]
    for command in (["replay", "1"], ["run", "--resume", "1", "--set", "rounds=4"]):
        code = main(command)
        err = capsys.readouterr().err
        if "unknown " in known:
            assert (code, err.count("\nerror: ") + err.startswith("error: ")) == (2, 1)
            assert "use fedwarden 0.1.0, which recorded it" in err
            assert digest(old) == before
        else:
            assert code == 0


def test_a_writer_brings_it_up_to_date_and_keeps_a_copy(old, capsys, caplog):
    before, whole = digest(old), everything(old)
    Ledger(old).close()
    (copy,) = old.glob("ledger.sqlite.schema-*")
    with closing(sqlite3.connect(copy)) as db, closing(sqlite3.connect(old / "ledger.sqlite")) as now:
        assert db.execute("PRAGMA user_version").fetchone()[0] < SCHEMA
        assert db.execute("SELECT * FROM watch").fetchall()
        assert now.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert (schema(old / "ledger.sqlite"), digest(old) == before) == (SCHEMA, False)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert f"kept as {copy.name}" in caplog.text
    np.testing.assert_equal(everything(old), whole)
    assert main(["doctor"]) == 0
    copy.replace(old / "ledger.sqlite")  # and the way back
    np.testing.assert_equal(everything(old), whole)


def test_the_doctor_migrates_when_asked(old, capsys):
    assert main(["doctor", "--migrate"]) == 0
    assert schema(old / "ledger.sqlite") == SCHEMA
    assert main(["doctor", "--migrate"]) == 0  # nothing to do
    assert len(list(old.glob("ledger.sqlite.schema-*"))) == 1


@pytest.mark.parametrize("old", OLD[-1:], indirect=True)
@pytest.mark.parametrize("share", [0.5, 1.1, 1.3])  # no room for a log, for the copy and its rows, for today's tables
def test_a_full_disk_loses_nothing(old, share):
    whole, most = everything(old), int(share * (old / "ledger.sqlite").stat().st_size)
    code = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most})); " \
        "from fedwarden.cli import main; raise SystemExit(main(['doctor', '--migrate']))"  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert not list(old.glob("ledger.sqlite.schema-*"))
    np.testing.assert_equal(everything(old), whole)


@pytest.mark.parametrize("old", OLD[-1:], indirect=True)
def test_nothing_is_migrated_while_another_process_has_it_open(old, capsys, monkeypatch):
    monkeypatch.setattr("fedwarden.store.earlier.PATIENCE", 0.1)
    with closing(sqlite3.connect(old / "ledger.sqlite")) as db:  # as a run of the earlier version has it between rounds
        db.execute("PRAGMA journal_mode = WAL").fetchall()
        db.execute("SELECT * FROM round").fetchall()
        before = digest(old)
        assert main(["doctor", "--migrate"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert "another process has the ledger" in err
        with pytest.raises(LedgerError, match="another process has the ledger"):
            Ledger(old)
        assert main(["show", "1"]) == 0
        db.execute("INSERT INTO metric VALUES (1, 3, 'late', 1.0)")
        db.commit()
        assert schema(old / "ledger.sqlite") < SCHEMA
    assert before
    assert not list(old.glob("ledger.sqlite.schema-*"))


@pytest.mark.parametrize("old", OLD[-1:], indirect=True)
@pytest.mark.parametrize("statement", ["UPDATE round SET clients = NULL", "DROP TABLE audit"])
def test_a_migration_that_fails_changes_nothing(old, statement):
    with closing(sqlite3.connect(old / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA ignore_check_constraints = ON")
        if "NULL" in statement:
            db.execute("PRAGMA writable_schema = ON")
            db.execute("UPDATE sqlite_master SET sql = replace(sql, 'clients TEXT NOT NULL', 'clients TEXT')")
    with closing(sqlite3.connect(old / "ledger.sqlite", isolation_level=None)) as db:
        db.execute(statement)
    with pytest.raises(LedgerError, match="cannot bring the ledger"):
        Ledger(old)
    assert schema(old / "ledger.sqlite") == SCHEMA - 1
    with closing(sqlite3.connect(old / "ledger.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM metric").fetchone()[0] > 0
    assert not list(old.glob("ledger.sqlite.schema-*"))


@pytest.mark.parametrize("old", OLD[:1], indirect=True)
def test_a_migration_that_was_killed_leaves_what_was_there(old, tmp_path, monkeypatch):
    """Half of it is in the file already, and the rest of what was there in SQLite's journal beside it."""
    whole, left, fill = everything(old), tmp_path / "left", earlier._fill

    def killed(db, version):
        db.execute("PRAGMA cache_size = 1")
        fill(db, version)
        db.execute("CREATE TABLE more AS SELECT randomblob(1000000)")
        shutil.copytree(old, left)

    monkeypatch.setattr(earlier, "_fill", killed)
    Ledger(old).close()
    before = digest(left)
    assert (left / "ledger.sqlite-journal").stat().st_size > 0
    np.testing.assert_equal(everything(left), whole)
    assert main(["doctor", "--home", str(left)]) == 0
    assert digest(left) == before
    monkeypatch.undo()
    Ledger(left).close()
    np.testing.assert_equal(everything(left), whole)


@pytest.mark.parametrize("old", OLD[-1:], indirect=True)
def test_a_damaged_cell_of_an_earlier_schema_is_named(old, capsys):
    with closing(sqlite3.connect(old / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE round SET weights = '[0.5' WHERE run = 1 AND round = 2")
    assert main(["show", "1"]) == 2
    assert "run 1, round 2: column weights" in capsys.readouterr().err
    assert main(["doctor", "--repair"]) == 0
    assert schema(old / "ledger.sqlite") == SCHEMA
    with Ledger(old, read_only=True) as ledger:
        assert [r.round for r in ledger.records(1)] == [1, 3]
