"""What is known of clients goes from one run to the next where the operator says so, and replays with it."""

from dataclasses import replace

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.cli import main
from fedwarden.guard.journal import Journal, experiment, kept
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import Scenario
from fedwarden.sim.whatif import decide_again
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.word import said_in, say

PAROLE = {"name": "quarantine", "parole": 2}


def scenario(rounds=2, **guard):
    table = {"name": "small", "rounds": rounds, "data": {"clients": 6}, "model": {"name": "mlp", "hidden": [4]}}
    return Scenario.model_validate({**table, "train": {"workers": 1}, "guard": {"preset": "pid_made", **guard}})


@pytest.fixture
def home(tmp_path, monkeypatch):
    """Run 1 trusts 0 and 1, has excluded 2 and 3 and readmitted 3; 4 is suspended at its end."""
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path))
    with Ledger(tmp_path) as ledger:
        run = ledger.start("before", "in-process", {"guard": {"trusted": ["0"]}}, {})
        zeros, ids = np.zeros(6), tuple(map(str, range(6)))
        record = fw.Warden().step(fw.Cohort(1, ids, fw.Updates.of(np.ones((6, 2))), zeros + 1)).record
        for kind, client in (("trust", "1"), ("exclude", "2"), ("exclude", "3")):
            say(ledger, run, kind, client, "alice", "she knows")
        ledger.db.execute("UPDATE word SET round = 1")
        ledger.append(run, replace(record, excluded=("2", "3", "4"), suspended=("4",)))
        say(ledger, run, "readmit", "3", "alice", "mended")
    return tmp_path


def test_trust_exclusions_and_suspensions_go_on_and_say_where_they_come_from(home, capsys):
    done = simulate(scenario(5, policy=PAROLE, standing="before"), home)
    first, last = done.records[0], done.records[-1]
    assert (set(first.excluded), first.suspended) == ({"2", "4"}, ("4",))
    assert last.excluded == ("2",)  # two clean rounds let a suspended client in again
    told = [str(note) for note in first.notes]
    why = "run 1: by operator alice from round 1 on: she knows"
    assert f"client 2 is excluded until it is readmitted ({why})" in told
    assert any(t.startswith("client 4 begins suspended (run 1: suspended since round 1 by the guard: ") for t in told)
    with Ledger(home, read_only=True) as ledger:
        said, run = said_in(ledger, done.run), ledger.run(done.run)
        assert [(s.kind, s.client) for s in said] == [
            ("trust", "0"), ("trust", "1"), ("exclude", "2"), ("suspend", "4"),
        ]  # fmt: skip
        records = ledger.records(done.run)
        _, again = decide_again(run, records, said=said)
    assert [(r.excluded, r.suspended) for r in again] == [(r.excluded, r.suspended) for r in records]
    assert main(["show", str(done.run), "--home", str(home)]) == 0
    assert "run 1" in capsys.readouterr().out
    longer = simulate(scenario(6, policy=PAROLE, standing="before"), home, resume=done.run)
    assert longer.records[-1].excluded == ("2",)


def test_it_is_off_by_default_and_a_policy_without_suspensions_has_none(home):
    assert simulate(scenario(), home).records[0].excluded == ()
    assert simulate(scenario(1, preset="auto", standing=1), home).records[0].excluded == ("2",)


def test_an_operator_takes_back_what_was_carried_over(home):
    def readmit(run, federation):
        with Ledger(home) as ledger:
            say(ledger, run, "readmit", "2", "bob", "replaced")

    records = simulate(scenario(policy="observe", standing=1), home, on_start=readmit).records
    assert [r.excluded for r in records] == [(), ()]


def test_a_run_that_is_not_there_starts_none(home, capsys):
    with pytest.raises(LedgerError, match="no run 9"):
        simulate(scenario(standing=9), home)
    with Ledger(home, read_only=True) as ledger:
        assert len(ledger.runs()) == 1


def test_a_server_of_another_engine_goes_on_from_it_as_well(home):
    """The warden is made in Python; what it trusts by itself is recorded for the run after it."""
    for name, warden in (
        ("second", fw.Warden.preset("auto", standing="before", trusted=["5"])),
        ("third", fw.Warden.preset("auto", standing="second")),
    ):
        config = {**kept(warden), "experiment": experiment(["FedAvg"], warden, (), ())}
        journal = Journal(home, name, "flower", config, ("warden",), print)
        words = [journal.recorder.word(1, there) for there in ((), ("2", "4"), map(str, range(6)))]
        journal.close("done")
        assert [w.excluded for w in words] == [set(), {"2"}, {"2"}]
        assert [w.suspended for w in words] == [set(), *[{"4"} if name == "second" else set()] * 2]
        assert words[-1].trusted == ({"0", "1"} if name == "second" else {"0", "1", "5"})
        assert not any(w.trusted for w in words[:2])
