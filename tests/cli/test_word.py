"""The operator's word on the command line: said, refused, undone, shown, and obeyed by a federation that runs."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from getpass import getuser
from pathlib import Path

import numpy as np
import pytest

from fedwarden.core.types import RoundRecord
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger
from fedwarden.store.word import said_in

NAMES = ("Basel", "Bern", "Genf", "Chur", "Zug", "Aarau")
SCENARIO = {
    "name": "hospitals",
    "rounds": 6,
    "data": {"clients": 6, "names": NAMES},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"workers": 1},
    "guard": {"preset": "pid_made"},
}


@pytest.fixture
def flower(workspace):
    """A run of another engine that goes on: two rounds so far, in which one reply was rejected."""
    with Ledger(workspace) as ledger:
        run = ledger.start("wards", "flower", {"rounds": 9}, {})
        for t in (1, 2):
            one = np.ones(3)
            ledger.append(run, RoundRecord(t, ("north", "south", "-west"), one, one / 3, flagged=one > 2))
    return run


@pytest.fixture
def interrupted(workspace):
    """A simulation that was interrupted after its third round."""

    def stop(record):
        if record.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(load_scenario(SCENARIO), workspace, on_round=stop)
    return 1


def entries(run=1):
    with Ledger(read_only=True) as ledger:
        return [(s.kind, s.client, s.by, s.reason, s.round) for s in said_in(ledger, run)]


def test_every_word_is_recorded_with_its_reason_and_who_said_so(call, flower):
    for words in (
        ("trust", 1, "north", "--reason", "has the\nrare disease", "--by", "alice"),
        ("trust", "wards", "north", "--undo"),
        ("exclude", 1, "south", "--reason", "maintenance"),
        ("readmit", 1, "south"),
        ("observe", 1),
        ("enforce", 1),
        ("exclude", 1, "--", "-west"),
    ):
        code, out, err = call(*words)
        assert (code, err) == (0, ""), words
        assert "from the next round on; round 2 is the last one recorded" in out
    assert entries() == [
        ("trust", "north", "alice", "has the rare disease", None),
        ("untrust", "north", getuser(), "", None),
        ("exclude", "south", getuser(), "maintenance", None),
        ("readmit", "south", getuser(), "", None),
        ("observe", "", getuser(), "", None),
        ("enforce", "", getuser(), "", None),
        ("exclude", "-west", getuser(), "", None),
    ]


@pytest.mark.parametrize(
    ("words", "undo"),
    [
        (("trust", 1, "north"), "trust --undo 1 north"),
        (("exclude", 1, "north"), "readmit 1 north"),
        (("readmit", 1, "north"), "exclude 1 north"),
        (("observe", 1), "enforce 1"),
    ],
)
def test_each_answer_says_how_to_take_it_back(call, flower, words, undo):
    _, out, _ = call(*words)
    (line,) = (line for line in out.splitlines() if "take it back" in line)
    assert line.split("#")[0].strip() == f"fedwarden {undo}"
    code, out, _ = call(*undo.split())
    assert code == 0
    assert f"fedwarden {' '.join(map(str, words))} " in out


def test_as_json(call_json, flower):
    told = call_json("exclude", 1, "north", "--by", "alice", "--reason", "maintenance")
    assert told.pop("said_at") == pytest.approx(time.time(), abs=60)
    assert told == {
        "run": 1, "state": "running", "recorded": True, "number": 1, "kind": "exclude", "client": "north",
        "by": "alice", "reason": "maintenance", "round": None,
    }  # fmt: skip
    assert call_json("exclude", 1, "north", "--by", "bob")["recorded"] is False


def test_what_holds_already_is_not_recorded_again(call, flower):
    for words in (("trust", 1, "north"), ("exclude", 1, "south"), ("observe", 1)):
        assert call(*words, "--by", "alice")[0] == 0
        code, out, _ = call(*words, "--by", "bob")
        assert code == 0
        assert "already (operator alice); nothing new is recorded" in out
    assert len(entries()) == 3


def test_an_excluded_client_that_is_trusted_stays_excluded_until_it_is_readmitted(call, flower):
    call("exclude", 1, "north")
    _, out, _ = call("trust", 1, "north")
    assert "It stays excluded until: fedwarden readmit 1 north" in out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("trust", 9, "north"), "no run 9 in {home}/ledger.sqlite; there are: 1 (wards)"),
        (("trust", 1, "nroth"), "run 1 has no client 'nroth'; did you mean 'north'?"),
        (("exclude", 1, "zzz"), "run 1 has no client 'zzz'; expected one of: -west, north and south"),
        (
            ("trust", 1, "north", "--undo"),
            "client 'north' is not trusted by command; clients that are: none "
            "(guard.trusted is changed in the configuration)",
        ),
        (("enforce", 1), "run 1 is not observing by command, so there is nothing to end"),
        (("trust", 1), "Missing argument 'CLIENT'. (see fedwarden trust --help)"),
    ],
)
def test_what_cannot_be_said_ends_in_one_line(call, flower, workspace, words, line):
    assert call(*words) == (2, "", f"error: {line.format(home=workspace)}\n")
    assert entries() == []


def test_a_workspace_without_a_ledger(call, workspace):
    code, out, err = call("observe", 1)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: no ledger in {workspace}; run something first")


def test_a_run_without_a_round_knows_no_client(call, workspace):
    with Ledger(workspace) as ledger:
        ledger.start("wards", "flower", {}, {})
    line = "run 1 has no client 'north': none has answered yet; expected after its first round"
    assert call("exclude", 1, "north") == (2, "", f"error: {line}\n")
    assert call("observe", 1)[0] == 0


def test_a_finished_run_is_refused(call, recorded):
    line = "error: run 1 is done and has no next round; expected an unfinished run"
    assert call("trust", 1, "0", "--home", recorded) == (
        2,
        "",
        f"{line}; give the guard of the next run trusted = ['0']\n",
    )
    assert call("observe", 1, "--home", recorded) == (2, "", f"{line}\n")


def test_a_simulation_knows_its_clients_before_they_answer(call, workspace):
    with Ledger(workspace) as ledger:
        ledger.start("hospitals", "in-process", load_scenario(SCENARIO).model_dump(mode="json"), {})
    assert call("exclude", 1, "Aarau")[0] == 0
    assert "did you mean 'Basel'?" in call("exclude", 1, "Basle")[2]


def test_an_interrupted_run_obeys_when_it_goes_on(call, call_json, interrupted, workspace):
    _, out, _ = call("exclude", 1, "Bern", "--reason", "maintenance", "--by", "alice")
    assert "fedwarden run --resume 1" in out
    assert call("run", "--resume", 1, "--quiet")[0] == 0
    assert entries() == [("exclude", "Bern", "alice", "maintenance", 4)]
    with Ledger(workspace, read_only=True) as ledger:
        assert [("Bern" in r.client_ids, "Bern" in r.excluded) for r in ledger.records(1)] == (
            [(True, False)] * 3 + [(False, True)] * 3
        )
    _, out, _ = call("show", 1)
    (row,) = (line.split() for line in out.splitlines() if line.startswith("exclude "))
    assert row == ["exclude", "Bern", "4", "alice", "maintenance"]
    assert "Client Bern was excluded in round 4: operator alice: maintenance." in out
    told = call_json("show", 1)
    assert told["word"] == {"trusted": [], "excluded": ["Bern"], "suspended": [], "readmitted": [], "observing": False}
    assert [(s["kind"], s["round"]) for s in told["said"]] == [("exclude", 4)]
    _, out, _ = call("replay", 1)
    assert "The same decisions." in out
    _, out, _ = call("show", 1, "--round", 4)
    assert "client Bern is excluded until it is readmitted (operator alice: maintenance)" in out


LOOK = """
import os, sys
from fedwarden.cli import main
import fedwarden.cli.word
os.setgroups([]); os.setgid(65534); os.setuid(65534)
sys.exit(main(["observe", "1", "--home", sys.argv[1]]))
"""


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_a_ledger_that_cannot_be_written(flower, workspace):
    place = Path(tempfile.mkdtemp(prefix="fedwarden-word-"))  # pytest's own folders are closed to others
    try:
        shutil.copytree(workspace, place / "home")
        place.chmod(0o755)
        done = subprocess.run([sys.executable, "-c", LOOK, str(place / "home")], capture_output=True, text=True)
    finally:
        shutil.rmtree(place)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f" may not write in {place}/home; use its owner's account, or another workspace" in line
