"""The workspace as a whole: sizes, prune, backup and restore; and the log as JSON."""

import io
import json
import os
import shutil
import tarfile
import threading

import pytest

from fedwarden.cli import common
from fedwarden.store.claim import claim
from fedwarden.store.ledger import Ledger, LedgerError
from states import held


@pytest.fixture
def several(recorded, workspace):
    """A finished run with its checkpoints, and four more rows: done, failed, interrupted, done."""
    shutil.copytree(recorded, workspace)
    with Ledger(workspace) as ledger:
        for state in ("done", "failed", "interrupted", "done"):
            ledger.finish(ledger.start(state, "test", {"long": "x" * 50_000}, {}), state)
    return workspace


def left(folder):
    with Ledger(folder, read_only=True) as ledger:
        return [run.id for run in ledger.runs()]


def test_long_has_sizes(several, call, call_json):
    rows = {row["run"]: row for row in call_json("runs", "--long")["runs"]}
    stored = sum(path.stat().st_size for path in (several / "checkpoints" / "1").iterdir())
    assert rows[1]["checkpoint_bytes"] == stored
    assert 1000 < rows[1]["ledger_bytes"] < (several / "ledger.sqlite").stat().st_size
    assert rows[1]["pending"] == rows[2]["checkpoint_bytes"] == 0
    assert "checkpoints" in call("runs", "--long")[1]
    assert "ledger_bytes" not in call_json("runs")["runs"][0]


def test_prune_keeps_the_newest_and_those_that_are_not_done(several, call, call_json, monkeypatch):
    size = (several / "ledger.sqlite").stat().st_size
    assert call_json("prune", "--keep", 1, "--dry-run")["removed"] == [2, 1]
    assert left(several) == [5, 4, 3, 2, 1]
    monkeypatch.setattr("fedwarden.store.ledger.PIECE", 1)
    with Ledger(several, read_only=True) as reader:
        rounds = reader.stream(1)
        assert next(rounds).round == 1
        code, out, _ = call("prune", "--keep", "1")
        with pytest.raises(LedgerError, match="run 1 was removed while it was read"):
            list(rounds)
    assert code == 0
    assert "run 1  tiny  done, 3 rounds" in out
    assert "2 runs removed, about" in out
    assert left(several) == [5, 4, 3]
    assert not (several / "checkpoints" / "1").exists()
    assert (several / "ledger.sqlite").stat().st_size < size
    with claim(several, 3):
        assert call_json("prune", "--keep", 1, "--unfinished")["removed"] == [4]
    assert call("prune", "--keep", "5")[1] == "nothing to remove\n"
    assert call("prune", "--keep", "0")[0] == 2
    assert "Sound: 2 runs" in call("doctor")[1]


def test_a_backup_of_a_run_that_goes_on_is_resumed_elsewhere_to_the_same_bits(call, tiny, workspace, tmp_path):
    assert call("run", tiny, "-q", "--set", "rounds=2", "--set", "name=mine")[0] == 0
    stop = threading.Event()

    def write():
        with Ledger(workspace) as ledger:
            while not stop.is_set():
                ledger.finish(ledger.start("other", "test", {}, {}), "failed")

    writer = threading.Thread(target=write)
    writer.start()
    file, there = tmp_path / "w.tar", tmp_path / "there"
    try:
        assert call("backup", file)[0] == 0
    finally:
        stop.set()
        writer.join()
    assert "is there already" in call("backup", file)[2]
    assert call("backup", file, "--force")[0] == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert call("restore", file, "--home", there)[0] == 0
    assert "is there already" in call("restore", file, "--home", there)[2]
    for home in (workspace, there):  # and a run's name is enough
        assert call("run", "--resume", "mine", "-q", "--set", "rounds=3", "--home", home)[0] == 0
    last = "checkpoints/1/round-000003.safetensors"
    assert held(there / last) == held(workspace / last)


@pytest.mark.parametrize("name", ["../ledger.sqlite", "/tmp/ledger.sqlite", "checkpoints/1/../../x", "other"])
def test_a_strange_backup_is_refused_and_writes_nothing(call, tmp_path, name):
    with tarfile.open(tmp_path / "w.tar", "w") as made:
        made.addfile(tarfile.TarInfo(name), io.BytesIO())
    (tmp_path / "text").write_text("no archive")
    for file in ("w.tar", "text"):
        code, _, err = call("restore", tmp_path / file, "--home", tmp_path / "there")
        assert code == 2
        assert "is no backup of a workspace" in err
        assert err.count("\n") == 1
        assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("kind", ["compressed", "sparse", "link", "device", "fifo"])
def test_a_backup_that_holds_more_than_it_is_long_or_no_files_is_refused(call, tmp_path, kind):
    file, part = tmp_path / "w.tar", tarfile.TarInfo("checkpoints/1/round-000001.safetensors")
    part.size, part.linkname = 1 << 26, "/etc/passwd"
    types = {"link": tarfile.SYMTYPE, "device": tarfile.CHRTYPE, "fifo": tarfile.FIFOTYPE}
    part.type = types.get(kind, tarfile.REGTYPE)
    if kind == "sparse":
        part.pax_headers = {"GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "0", "GNU.sparse.map": "0,0"}
    with tarfile.open(file, "w:gz" if kind == "compressed" else "w", format=tarfile.PAX_FORMAT) as made:
        part.size = part.size if kind == "compressed" else 0
        made.addfile(part, io.BytesIO(bytes(part.size)))
    code, _, err = call("restore", file, "--home", tmp_path / "there")
    assert (code, err.count("\n")) == (2, 1)
    assert "is no backup of a workspace" in err
    assert not (tmp_path / "there").exists()


def test_what_lies_among_the_checkpoints_spoils_no_backup(several, call, tmp_path):
    place = several / "checkpoints" / "1"
    ours = {path.name for path in place.iterdir()}
    (place / "round-000009.safetensors").symlink_to("/etc/passwd")
    (place / "round-000008.rows").symlink_to("nothing")
    os.mkfifo(place / "round-000007.safetensors")
    (place / "round-last.safetensors").write_bytes(b"mine")
    for command in (["runs", "--long"], ["backup", tmp_path / "w.tar"], ["prune", "--keep", "9"]):
        assert call(*command)[0] == 0
    assert call("restore", tmp_path / "w.tar", "--home", tmp_path / "there")[0] == 0
    assert {path.name for path in (tmp_path / "there" / "checkpoints" / "1").iterdir()} == ours


def test_the_log_as_json(call, tiny, monkeypatch):
    lines = call("--log", "json", "run", tiny, "--set", "attacks.0.start=4")[2].splitlines()
    found = [json.loads(line) for line in lines]
    assert {(one["level"], one["logger"]) for one in found} == {("info", "fedwarden"), ("warning", "fedwarden")}
    assert any("round 3 of 3" in one["message"] for one in found)
    monkeypatch.setenv("FEDWARDEN_LOG", "json")
    (error,) = call("show", "9")[2].splitlines()
    assert json.loads(error)["level"] == "error"
    assert call("--log", "words", "show", "9")[2].startswith("error: no run 9")
    assert "'xml'" in call("--log", "xml", "runs")[2]


def test_nothing_is_recommended_that_is_not_installed(call, recorded, monkeypatch):
    assert "fedwarden dashboard" in call("runs", "--home", recorded)[1]
    monkeypatch.setattr(common, "find_spec", lambda name: None)
    assert "fedwarden show 1" in call("runs", "--home", recorded)[1]
    for command in ("runs", "show"):
        told = call(command, *(["1"] if command == "show" else []), "--home", recorded)[1]
        assert "fedwarden dashboard" not in told
        assert "fedwarden report" not in told
