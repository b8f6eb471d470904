"""``run``: the summary, JSON, and resuming to the same bits."""

import numpy as np
import pytest

import fedwarden.cli.demo
from fedwarden.cli.run import Monitor
from fedwarden.store.checkpoint import checkpoint_path
from fedwarden.store.conclusion import conclusion
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.story import Story
from states import held


def last_checkpoint(home, run, round):
    return held(checkpoint_path(home, run, round))


def test_the_summary_tells_how_the_guard_did(call, tiny):
    code, out, err = call("run", tiny)
    assert code == 0
    assert "run 1  tiny  done" in out
    assert "after 3 rounds" in out
    assert "  1 attacker: 1 excluded.\n  5 honest clients: none flagged.\n" in out
    assert "fedwarden show 1" in out
    assert "round 3 of 3" in err


def test_every_distinct_warning_is_printed_once(call, tiny):
    _, _, err = call("run", tiny, "--set", "guard.options={k = 2.33}")
    assert err.count("mask each other") == 1  # made in every round
    assert call("run", tiny, "--set", "guard.options={k = 2.33}", "--quiet")[2] == ""


def test_all_are_in_the_model_only_where_none_was_left_out_of_the_round(call, tiny):
    _, _, err = call("run", tiny, "--set", "guard.policy=exclude", "--set", "rounds=2")
    assert [line.partition("accuracy ")[2].partition(", ")[2] for line in err.splitlines() if "of 2" in line] == [
        "all in the model",  # the first round is not judged
        "skipped: 0",
    ]


def test_an_attack_after_the_last_round_is_told_and_makes_no_attacker(call, call_json, tiny):
    _, _, err = call("run", tiny, "--set", "attacks.0.start=4")
    assert "warning attack label_flip starts in round 4, after the last one, 3: it never happens" in err
    assert call_json("show", "1")["attackers"] == []
    assert "never happens" not in call("run", tiny, "--set", "attacks.0.start=3")[2]
    assert call_json("show", "2")["attackers"] == ["0"]


def test_json_has_the_numbers_of_the_ledger(call_json, tiny, workspace):
    told = call_json("run", tiny)
    with Ledger(workspace) as ledger:
        records = ledger.records(told["run"])
    assert told["accuracy"] == records[-1].metrics["accuracy"]
    assert told["attackers"] == ["0"]
    assert set(told["caught"]) <= {"0"} <= set(told["clients"])
    assert told["late_accuracy"] == pytest.approx(np.mean([r.metrics["accuracy"] for r in records]))
    again = call_json("run", "--resume", str(told["run"]))
    assert again["already_done"]
    keys = conclusion(Story.of(records), ())
    assert {key: again[key] for key in keys} == {key: told[key] for key in keys}


def test_ctrl_c_says_how_to_resume_and_resuming_ends_with_the_same_bits(call, tiny, workspace, tmp_path, monkeypatch):
    assert call("run", tiny, "--home", tmp_path / "whole")[0] == 0
    follow = Monitor.on_round

    def interrupt(self, record):
        follow(self, record)
        if record.round == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Monitor, "on_round", interrupt)
        code, _, err = call("run", tiny)
    assert code == 130
    assert err.splitlines()[-1] == "error: interrupted after round 2 of 3; continue with: fedwarden run --resume 1"
    assert "interrupted" in call("runs")[1]

    code, out, err = call("run", tiny, "--resume")
    assert code == 0
    assert "continues after round 2 of 3" in err
    assert last_checkpoint(workspace, 1, 3) == last_checkpoint(tmp_path / "whole", 1, 3)

    for args in (["run", tiny, "--resume"], ["run", "--resume", "1"], ["run", "--resume"]):
        code, out, _ = call(*args)
        assert code == 0
        assert "already done" in out
        assert "fedwarden run --resume 1 --set rounds=6" in out


def test_resume_needs_a_run_of_that_name(call, tiny, recorded):
    code, _, err = call("run", tiny, "--set", "name=other", "--resume", "--home", recorded)
    assert code == 2
    assert "'other'" in err


def rounds(home):
    try:
        with Ledger(home, create=False) as ledger:
            return ledger.last_round(1)
    except LedgerError:  # being created
        return 0


def test_demo_shows_both_guards_in_both_acts(call, tiny, monkeypatch):
    tiny.write_text(tiny.read_text().partition("[guard]")[0])
    monkeypatch.setattr(fedwarden.cli.demo, "SCENARIO", tiny)
    code, out, _ = call("demo")
    assert code == 0
    assert out.count("plain averaging") == out.count("behind the guard") == 2
    assert "fedwarden show 2" in out
    assert "strategy = Guarded(FedAvg())" in out
    assert "in a browser now?" not in out  # nobody is asked who does not sit at a terminal


def test_demo_prints_a_scenario_that_runs(call, tmp_path):
    code, out, _ = call("demo", "--toml")
    (tmp_path / "mine.toml").write_text(out)
    assert code == 0
    assert call("run", tmp_path / "mine.toml", "--set", "rounds=1", "--set", "train.workers=1")[0] == 0


@pytest.mark.slow
def test_demo_shows_what_the_guard_is_for(call_json):
    plain, guarded, backdoored, kept = call_json("demo")["runs"]
    assert plain["accuracy"] < 0.7 < 0.9 < guarded["accuracy"]
    assert kept["attack_success"] < 0.2 < 0.8 < backdoored["attack_success"]
    for run in (guarded, kept):
        assert run["honest_in_doubt"] == run["wronged"] == []
    assert sorted(guarded["found"]) == ["0", "1", "2", "3"]
