"""The doctor: what it finds, what it saves, and that it never loses what was there."""

import json
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import fedwarden.store.ledger as module
from fedwarden.cli import main
from fedwarden.core.types import RoundRecord
from fedwarden.store.ledger import Ledger
from fedwarden.store.schema import TABLES

from .damage import VIEWS, fill


@pytest.fixture(scope="module")
def sound(tmp_path_factory, played):
    return fill(tmp_path_factory.mktemp("sound"), played)


@pytest.fixture
def home(sound, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    return shutil.copytree(sound, tmp_path / "home")


def doctor(capsys, *args):
    code = main(["doctor", *map(str, args)])
    return code, *capsys.readouterr()


def sql(home, *statements):
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)


def content(home):
    """Every row of every table, whatever its place in the file."""
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        return {t: sorted(db.execute(f"SELECT * FROM {t}").fetchall(), key=repr) for t in TABLES}


def test_a_sound_workspace(home, capsys):
    code, out, err = doctor(capsys)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "note running: run 2: marked running after 6 rounds; if no process is at it, fedwarden run --resume 2",
        "Sound: 2 runs and 12 rounds.",
    ]
    before = (home / "ledger.sqlite").read_bytes()
    assert doctor(capsys, "--repair")[0] == 0
    assert (home / "ledger.sqlite").read_bytes() == before  # there was nothing to do
    assert not list(home.glob("*damaged*"))


def test_repair_loses_the_damaged_round_alone_and_keeps_all_else_bit_by_bit(home, capsys):
    whole = content(home)
    sql(home, "UPDATE watch SET score = 'x' WHERE run = 1 AND round = 4")
    code, out, _ = doctor(capsys, "--json")
    found = json.loads(out)
    assert (code, found["sound"], found["runs"]) == (1, False, {"1": 5, "2": 6})
    (fault,) = [f for f in found["findings"] if f["fault"]]
    assert (fault["kind"], fault["run"], fault["round"]) == ("round", 1, 4)
    code, out, _ = doctor(capsys, "--repair")
    assert code == 0
    assert "damaged round: run 1, round 4: column score" in out
    kept = {
        table: [row for row in rows if table in ("run", "client", "audit") or row["run"] != 1 or row["round"] != 4]
        for table, rows in named(whole, home).items()
    }
    assert named(content(home), home) == kept


def named(tables, home):
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        columns = {t: [c[1] for c in db.execute(f"PRAGMA table_info({t})")] for t in tables}
    return {t: [dict(zip(columns[t], row, strict=True)) for row in rows] for t, rows in tables.items()}


def test_what_is_left_is_exported(home, capsys, tmp_path):
    sql(home, "UPDATE round SET clients = 'x' WHERE run = 2 AND round = 1")
    file = tmp_path / "left.json"
    assert doctor(capsys, "--export", file)[0] == 1
    runs = json.loads(file.read_text())["runs"]
    assert [(r["id"], r["name"]) for r in runs] == [(1, "first"), (2, "second [x]")]
    assert [sorted(set(r["table"]["round"])) for r in runs] == [[1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6]]
    code, _, err = doctor(capsys, "--export", file)
    assert code == 2
    assert "is there already" in err


@pytest.mark.parametrize("loss", ["UPDATE run SET config = x'00ff' WHERE id = 1", "DELETE FROM run WHERE id = 1"])
def test_a_run_whose_own_row_is_lost_keeps_its_rounds(home, capsys, loss):
    sql(home, loss)
    code, out, _ = doctor(capsys)
    assert code == 1
    assert "DELETE" not in loss or "run 1 has rounds, but its own row is lost" in out
    assert doctor(capsys, "--repair")[0] == 0
    with Ledger(home, read_only=True) as ledger:
        run = ledger.run(1)
        assert (run.name, run.engine, run.state, run.rounds) == ("run 1, repaired", "repaired", "failed", 6)
        assert len(ledger.records(1)) == 6
    assert main(["show", "1"]) == 0


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TRIGGER trap AFTER INSERT ON round BEGIN DELETE FROM run; END",
        "PRAGMA user_version = 99",
        "PRAGMA user_version = 0",
        "CREATE TRIGGER other DELETE ON word BEGIN DELETE FROM run; END",
    ],
)
def test_what_does_not_touch_a_row_is_repaired_in_full(home, capsys, statement):
    whole = content(home)
    sql(home, statement)
    assert main(["runs"]) in (0, 2)
    assert doctor(capsys)[0] == 1
    assert doctor(capsys, "--repair")[0] == 0
    assert content(home) == whole
    assert main(["runs"]) == 0


def test_statements_that_sqlite_cannot_read_are_known_by_heart(home, capsys):
    """One letter in the text of a table, and SQLite refuses the whole file."""
    whole = content(home)
    path = home / "ledger.sqlite"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE round (", b"CREATE TIBLE round (", 1))
    assert main(["runs"]) == 2
    assert "malformed database schema" in capsys.readouterr().err
    assert doctor(capsys, "--repair")[0] == 0
    assert content(home) == whole


def test_a_damaged_page_loses_the_rounds_on_it_and_no_others(tmp_path, capsys, monkeypatch):
    """Of sixty rounds of 200 clients on some hundred pages, one page is overwritten."""
    home = tmp_path / "home"
    monkeypatch.setenv("FEDWARDEN_HOME", str(home))
    ids = tuple(f"node-{i}" for i in range(200))
    with Ledger(home) as ledger:
        run = ledger.start("mine", "flower", {"rounds": 60}, {})
        for t in range(1, 61):
            ledger.append(run, RoundRecord(t, ids, np.random.default_rng(t).random(200), np.ones(200)))
        ledger.finish(run, "done")
    path = home / "ledger.sqlite"
    content = bytearray(path.read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\xa5" * 4096
    path.write_bytes(content)
    assert doctor(capsys)[0] == 1
    assert doctor(capsys, "--repair")[0] == 0
    with Ledger(home, read_only=True) as ledger:
        assert len(ledger.records(1)) >= 55


@pytest.mark.parametrize("table", VIEWS)
def test_an_endless_view_is_not_looked_into_and_the_other_tables_are_saved(home, capsys, monkeypatch, table):
    whole = content(home)
    sql(home, f"DROP TABLE {table}", VIEWS[table])
    monkeypatch.setattr(module, "LIMIT", 1.0)
    for args, code in (((), 1), (("--repair",), 0)):
        found, out, err = doctor(capsys, *args)
        assert found == code
        assert "took longer" not in out + err
    left = content(home)
    if table == "round":
        assert left["run"] == whole["run"]  # rounds are lost with the table
    else:
        assert {t: left[t] for t in ("round", "watch", "report")} == {t: whole[t] for t in ("round", "watch", "report")}


def test_nothing_is_repaired_while_somebody_has_it_open(home, capsys):
    sql(home, "UPDATE watch SET score = 'x' WHERE run = 1 AND round = 4")
    with Ledger(home):
        code, _, err = doctor(capsys, "--repair")
    assert code == 2
    assert "another process has" in err
    assert not list(home.glob("*damaged*"))
    assert not list(home.glob("repair-*"))
    for n in (1, 2):
        assert doctor(capsys, "--repair")[0] == 0
        assert len(list(home.glob("*damaged-*"))) == n
        sql(home, "UPDATE watch SET score = 'x' WHERE run = 1 AND round = 5")


def test_of_nothing_nothing_can_be_read(home, capsys):
    (home / "ledger.sqlite").write_bytes(b"\xa5" * 20000)
    code, out, err = doctor(capsys)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "nothing can be read" in err
    (home / "ledger.sqlite").unlink()
    code, _, err = doctor(capsys)
    assert (code, err.count("\n")) == (2, 1)
    assert "no ledger in" in err


def test_a_configuration_that_this_version_does_not_know_is_named_and_no_fault(home, capsys):
    sql(home, """UPDATE run SET config = '{"rounds": 6, "datta": 5}' WHERE id = 1""")
    code, out, _ = doctor(capsys, "--repair")
    assert code == 0
    assert "note config: run 1: its configuration has keys that this version does not know (datta)" in out
    assert not list(home.glob("*damaged*"))
