"""``fedwarden bench``: what it runs, what it does not run again, and what it writes."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from fedwarden.studies import runner
from fedwarden.studies.attack_cases import NO_ATTACK
from fedwarden.studies.runner import results, results_file
from fedwarden_research.studies import defences

ASKED = ("bench", "defences", "--seeds", 1, "--rounds", 2, "--processes", 1)
TWO = ("--attack", "sign flip", "--defence", "auto", "--defence", "FedAvg")


def keep(folder, rounds=2):
    """Results of the whole grid as if it had been run; ``auto`` does best."""
    made = []
    for cell, _ in defences.cells([0], "digits", rounds):
        late = 0.9 if cell["defence"] == "auto" else 0.5
        found = {"late_accuracy": late, "attackers": round(20 * cell["share"]), "caught": 0, "wronged": 0}
        made.append(json.dumps({"cell": cell, "result": found}))
    path = results_file(folder, f"defences-digits-{rounds}")
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(made) + "\n")
    return path


def test_a_grid_that_is_done_is_not_run_again(call_json, workspace, monkeypatch):
    """Real runs, in a thread: the slow test below has processes."""
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    told = call_json(*ASKED, "--attack", "none", "--defence", "FedAvg")
    assert told["runs"] == 2  # two degrees of heterogeneity
    path = results_file(workspace, "defences-digits-2")
    before = path.read_bytes()
    assert call_json(*ASKED, "--attack", "none", "--defence", "FedAvg") == told
    assert path.read_bytes() == before
    assert all(0 < r["result"]["late_accuracy"] <= 1 for r in results(workspace, "defences-digits-2"))


def test_only_what_was_asked_for_is_told(call, workspace, tmp_path):
    path = keep(workspace)
    before = path.read_bytes()
    code, out, _ = call(*ASKED, *TWO, "--out", tmp_path / "pages")
    assert code == 0
    assert "`auto` is best or within one point of the best in 6 of 6 cells (100 %); the bar is 90 %." in out
    assert "Krum" not in out
    assert sorted(p.name for p in (tmp_path / "pages").iterdir()) == [
        "accuracy-sign-flip.csv", "defences.md", "detections.csv", "sign-flip.svg",
    ]  # fmt: skip
    assert path.read_bytes() == before  # everything was there


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        (["bench", "attack"], ["'attack'", "'attacks'"]),
        (["bench", "defences", "mine.toml"], ["no file at mine.toml"]),
        (["bench", "defences", "--case", "copycat"], ["--case"]),
        (["bench", "attacks", "--defence", "Krum"], ["--defence"]),
        (["bench", "attacks", "nowhere.toml"], ["no file at nowhere.toml"]),
        (["bench", "attacks", "--case", "copy cat"], ["there is no case 'copy cat'; did you mean 'copycat'?"]),
        (["bench", "attacks", "--set", "rouns=3"], ["unknown key 'rouns'", "did you mean 'rounds'?"]),
        (["bench", "attacks", "--set", "data.dataset=digit"], ["'digit'", "did you mean 'digits'?"]),
        (["bench", "defences", "--data", "cifar"], ["there are settings for digits, mnist", "'cifar'"]),
        (["bench", "defences", "--defence", "krum"], ["there is no defence 'krum'; did you mean 'Krum'?"]),
        (
            ["bench", "defences", "--attack", "IPM", "--attack", "sign filp"],
            ["no attack 'sign filp'; did you mean 'sign flip'?"],
        ),
        (["bench", "defences", "--seeds", "0"], ["--seeds"]),
        (["bench", "defences", "--rounds", "0"], ["--rounds"]),
        (["bench", "defences", "--processes", "0"], ["--processes"]),
        (["bench", "defences", "--defense", "auto"], ["--defence"]),
    ],
)
def test_bad_calls(call, args, parts, workspace):
    code, out, err = call(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert all(part in err for part in parts)
    assert not workspace.exists()


SMALL = ("--seeds", 1, "--processes", 1, "--set", "rounds=4", "--set", "data.clients=5", "--set", "train.epochs=1")
CASES = ("--case", "copycat", "--case", "on-off 5-5, 1 attacker", "--case", "scaling")


def test_attacks_on_a_configuration_of_ones_own(call, call_json, tiny, workspace, tmp_path, monkeypatch):
    """Real runs, in a thread; a second call runs nothing, another configuration runs all."""
    monkeypatch.setattr(runner, "ProcessPoolExecutor", lambda n, *_: ThreadPoolExecutor(n))
    told = call_json("bench", "attacks", tiny, *SMALL, *CASES)
    assert told["runs"] == 4  # no attack, two cases, and the honest clients alone
    assert told["held"] + told["did_not_hold"] == 3
    assert told["cases"][-1]["case"] == "on-off 5-5, 1 attacker"
    assert told["cases"][-1]["verdict"] == "not run: does not pause in 4 rounds"
    (kept,) = (workspace / "studies").iterdir()
    before = kept.read_bytes()
    code, out, err = call("bench", "attacks", tiny, *SMALL, *CASES, "--out", tmp_path / "pages")
    assert (code, err) == (0, "")
    assert kept.read_bytes() == before
    first = out.splitlines()[0]
    assert first.startswith(f"{told['held']} of 3 cases held, 1 not run; 1 seed says nothing about chance")
    assert first in (tmp_path / "pages" / "attacks.md").read_text()
    assert "label_flip" not in out  # the scenario's own attack
    other = call_json("bench", "attacks", tiny, *SMALL, "--set", "train.lr=0.2", "--case", NO_ATTACK)
    assert len(list((workspace / "studies").iterdir())) == 2
    assert [c["case"] for c in other["cases"]] == [NO_ATTACK]
