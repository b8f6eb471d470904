"""Damaged and hostile ledgers: every command that reads them ends in one line and exit code 2, or reads them."""

import json
import random
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

import fedwarden as fw
import fedwarden.store.ledger as module
from fedwarden.cli import main
from fedwarden.store.connection import made_by
from fedwarden.store.ledger import STATEMENTS, Ledger, LedgerError

from .damage import ENDLESS, SEED, TIMES, VIEWS, change, config, fill, flip

READERS = tuple(
    line.split()
    for line in (
        "runs", "runs --json", "show 1", "show 1 --json", "show 1 --round 2", "show 2", "export 1 --to json -o -",
        "export 2 -o -", "replay 1", "replay 1 --rule gesd --json", "send 1 --to tensorboard", "report 2 --force",
        "doctor",
    )
)  # fmt: skip
QUICK = tuple(args for args in READERS if args[-1] == "--json" or args[0] in ("export", "doctor"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory, played):
    return fill(tmp_path_factory.mktemp("sound"), played)


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Commands write their files here, and a query that never ends is given up after a second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "LIMIT", 1.0)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def check(home, capsys, commands=READERS):
    """Every command reads the ledger, or says in one line why not; which of the two, by command."""
    found = {}
    for args in commands:
        code = main([*args, "--home", str(home)])
        out, err = capsys.readouterr()
        doctor = args[0] == "doctor"
        assert code in (0, 1, 2) if doctor else code in (0, 2), (args, err)
        if code == 2:
            *progress, err = err.splitlines(keepends=True)
            assert err.startswith("error: "), (args, err)
            assert all(line.startswith("replaying ") for line in progress), (args, progress)
            assert err.isprintable() or err[:-1].isprintable(), (args, err)
            assert len(err) < 2000, (args, err)
        elif "--json" in args:
            json.loads(out)
        found[tuple(args)] = code
    return found


def repaired(home, capsys):
    """After a repair the ledger is sound and every run in it is read; the damaged one is still there, byte for byte."""
    path = home / "ledger.sqlite"
    before = path.read_bytes()
    code = main(["doctor", "--repair", "--home", str(home)])
    out = capsys.readouterr().out
    assert code == 0
    assert "Repaired" in out
    assert (home / "ledger.sqlite.damaged-1").read_bytes() == before
    assert main(["doctor", "--home", str(home)]) == 0
    capsys.readouterr()
    assert main(["runs", "--json", "--home", str(home)]) == 0
    for run in json.loads(capsys.readouterr().out)["runs"]:
        assert main(["show", str(run["run"]), "--json", "--home", str(home)]) == 0
    capsys.readouterr()


def attack(sound, outside, capsys, how, many, commands):
    read = 0
    for i in range(many):
        rng = random.Random(f"{SEED} {how.__name__} {i}")
        home = outside / "home"
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(sound, home)
        print(f"seed {SEED}, {how.__name__}, case {i}:", what := how(home / "ledger.sqlite", rng))
        capsys.readouterr()
        try:
            found = check(home, capsys, commands)
            read += all(code == 0 for args, code in found.items() if args[0] != "doctor")
            if found.get(("doctor",)) == 1:
                repaired(home, capsys)
        except BaseException:
            print(f"seed {SEED}, {how.__name__}, case {i}: {what}")
            raise
    return read


@pytest.mark.parametrize("how", [flip, change])
@pytest.mark.parametrize(("many", "commands"), [(30, QUICK), pytest.param(60 * TIMES, READERS, marks=pytest.mark.slow)])
def test_a_damaged_ledger_never_ends_in_a_traceback(sound, outside, capsys, how, many, commands):
    read = attack(sound, outside, capsys, how, many, commands)
    print(f"seed {SEED}, {how.__name__}: of {many} ledgers {read} are read by every command, others refused")


def test_a_damaged_log_never_ends_in_a_traceback(played, outside, capsys):
    """What a killed writer left beside the file; SQLite has checksums of its own in it."""
    with Ledger(outside / "live") as ledger:
        for record in played:
            ledger.append(ledger.start("mine", "flower", {}, {}), record)
        for i in range(15):
            rng = random.Random(f"{SEED} log {i}")
            home = outside / "home"
            shutil.rmtree(home, ignore_errors=True)
            shutil.copytree(outside / "live", home)
            flip(home / "ledger.sqlite-wal", rng)
            if rng.random() < 0.5:
                (home / "ledger.sqlite-shm").unlink()
            check(home, capsys, (["runs"], ["show", "1"], ["doctor"]))


def test_a_sound_ledger_is_read_by_every_command(sound, outside, capsys):
    home = shutil.copytree(sound, outside / "home")
    assert set(check(home, capsys).values()) == {0}


@pytest.mark.parametrize("name", VIEWS)
def test_an_endless_view_in_place_of_a_table_is_refused(sound, outside, capsys, name):
    home = shutil.copytree(sound, outside / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        db.executescript(f"DROP TABLE {name}; {VIEWS[name]};")
    assert set(check(home, capsys, READERS[:4]).values()) == {2}
    with pytest.raises(LedgerError, match=f"did not make its table {name}"):
        Ledger(home)


def test_a_query_that_never_ends_is_given_up(sound, outside, capsys):
    """Were the check of the tables passed somehow, the clock would end it."""
    with (
        Ledger(sound, read_only=True) as ledger,
        pytest.raises(LedgerError, match=r"took longer than 1 s.*fedwarden doctor"),
    ):
        ledger.query(f"{ENDLESS} SELECT x FROM c WHERE x < 0")


def test_a_table_that_returns_more_than_the_file_holds_is_given_up(sound, outside, monkeypatch):
    """Pages of a damaged file may lead in a circle; memory must not fill until the clock ends it."""
    monkeypatch.setattr(module, "SPARE", 1000)
    with Ledger(sound, read_only=True) as ledger, pytest.raises(LedgerError, match="holds more than the file"):
        ledger.query(f"{ENDLESS} SELECT x, 'a long text, a long text, a long text' FROM c")


@pytest.mark.parametrize("table", ["run", "round", "watch"])
def test_a_strangers_trigger_is_not_followed(sound, outside, capsys, table):
    home = shutil.copytree(sound, outside / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        db.execute(f"CREATE TRIGGER trap AFTER INSERT ON {table} BEGIN DELETE FROM round; END")
    with pytest.raises(LedgerError, match="trigger 'trap'"):
        Ledger(home)
    assert set(check(home, capsys, READERS[:3]).values()) == {2}
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        assert db.execute("SELECT COUNT(*) FROM round").fetchone() == (12,)


def test_what_somebody_adds_beside_our_tables_is_left_alone(sound, outside, capsys):
    home = shutil.copytree(sound, outside / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
        db.execute("CREATE TABLE mine (a)")
        db.execute(f"CREATE VIEW endless AS {ENDLESS} SELECT x FROM c")
        db.execute("CREATE INDEX by_name ON run (name)")
        db.execute("ANALYZE")
    assert set(check(home, capsys, READERS[:4]).values()) == {0}
    with Ledger(home) as ledger:
        assert ledger.start("third", "here", {}, {}) == 3


def test_the_tables_stay_known_after_vacuum_and_in_a_copy_by_sql(sound, outside, capsys):
    home = shutil.copytree(sound, outside / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("VACUUM")
    assert set(check(home, capsys, READERS[:4]).values()) == {0}
    assert len(made_by(STATEMENTS)) == 9


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("UPDATE round SET weights = x'00' WHERE run = 1 AND round = 3", ("run 1, round 3", "weights", "7 numbers")),
        ("UPDATE round SET clients = x'63000000' WHERE run = 1 AND round = 1", ("run 1, round 1", "clients")),
        ("UPDATE round SET flagged = x'08000000' WHERE run = 1 AND round = 1", ("run 1, round 1", "flagged")),
        ("UPDATE round SET flagged = x'ffffffff' WHERE run = 1 AND round = 1", ("run 1, round 1", "flagged")),
        ("UPDATE watch SET parts = '[1]' WHERE run = 1 AND round = 2", ("run 1, round 2", "parts")),
        ("UPDATE watch SET part = x'00' WHERE run = 1 AND round = 2", ("run 1, round 2", "column part should hold")),
        ("UPDATE round SET round = -3 WHERE run = 1 AND round = 3", ("run 1", "-3")),
        ("UPDATE round SET metrics = '{\"loss\": \"high\"}' WHERE run = 1 AND round = 4", ("run 1, round 4", "'high'")),
        ("UPDATE report SET round = 44 WHERE run = 1 AND round = 4", ("run 1", "report", "round 44")),
        ("UPDATE client SET name = x'00' WHERE run = 1 AND number = 1", ("run 1, round 1", "name")),
        ("UPDATE remark SET about = 'x' WHERE run = 1", ("run 1, round 4", "about")),
        ("UPDATE remark SET note = 'why' WHERE run = 1", ("run 1, round 4", "note", "JSON")),
        ("UPDATE remark SET note = '{}' WHERE run = 1", ("run 1, round 4", "note", "kind, clients, values")),
        ("UPDATE run SET config = '[]' WHERE id = 1", ("run 1", "config")),
        ("UPDATE run SET config = '{\"guard\": {\"trusted\": 5}}' WHERE id = 1", ("run 1", "config", "guard")),
        ("UPDATE run SET config = '{\"trusted\": [[]]}' WHERE id = 1", ("run 1", "config", "trusted")),
        ("UPDATE run SET state = '[/]' WHERE id = 1", ("run 1", "state")),
        ("UPDATE run SET created = 1e300 WHERE id = 1", ("run 1", "created")),
        ("UPDATE run SET name = CAST(x'fffe' AS TEXT) WHERE id = 1", ("run 1", "name", "udcff")),
        ("UPDATE run SET name = char(27) || '[2J' || char(10) || 'x', state = x'00' WHERE id = 1", ("run 1", "state")),
        ("UPDATE run SET summary = '{\"excluded\": 5}' WHERE id = 1", ("run 1", "summary", "excluded")),
    ],
)  # fmt: skip
def test_a_damaged_cell_is_named(sound, outside, capsys, sql, words):
    home = shutil.copytree(sound, outside / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        assert db.execute(sql).rowcount > 0
    assert main(["show", "1", "--all", "--home", str(home)]) == 2
    err = capsys.readouterr().err
    assert "fedwarden doctor" in err
    for word in words:
        assert word in err
    assert main(["show", "2", "--home", str(home)]) == 0  # the other run is still there


def test_a_client_may_have_a_name_that_no_terminal_can_show(outside, capsys):
    one = np.ones(1)
    name = "a\ud800b"
    told = fw.RoundRecord(
        1, (name,), one, one, flagged=one > 2, excluded=(name,),
        rejected=(fw.Rejection(name, fw.Note.text(name)),), notes=(fw.Note.of("left_out", name, words=name),),
        metrics={name: 1.0},
    )  # fmt: skip
    with Ledger(outside / "home") as ledger:
        ledger.append(ledger.start("mine", "flower", {}, {}), told)
    commands = (["show", "1"], ["show", "1", "--json"], ["export", "1", "-o", "-"], ["report", "1"])
    assert set(check(outside / "home", capsys, commands).values()) == {0}


def test_a_configuration_with_huge_numbers_costs_no_memory(sound, outside, capsys):
    home = shutil.copytree(sound, outside / "home")
    for key, value in (
        ("data", {"clients": 10**12}),
        ("rounds", 10**15),
        ("attacks", [{"name": "x", "count": 10**12}]),
    ):
        with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
            db.execute("UPDATE run SET config = ? WHERE id = 1", (json.dumps({**config(), key: value}),))
        assert main(["show", "1", "--home", str(home)]) == 0  # as it stands
        assert str(value) in capsys.readouterr().out or key != "rounds"
        assert main(["replay", "1", "--home", str(home)]) == 2
        assert "run 1" in capsys.readouterr().err
