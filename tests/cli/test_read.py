"""The commands that read: list, runs, show, replay; and tune."""

import tomllib
from pathlib import Path

import numpy as np
import pytest
from pydantic import BaseModel

import fedwarden as fw
from fedwarden import names
from fedwarden.core.registry import FOLDERS
from fedwarden.core.types import Observation
from fedwarden.guard.config import WatchConfig
from fedwarden.sim.scenario import AttackConfig, Scenario, load_scenario
from fedwarden.store.ledger import Ledger

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.toml"))


@pytest.mark.parametrize("kind", FOLDERS)
def test_list_shows_every_name(call, call_json, kind):
    code, out, _ = call("list", kind)
    assert code == 0
    assert [entry["name"] for entry in call_json("list", kind)["entries"]] == list(names(kind))
    assert all(name in out for name in names(kind))


def test_list_gives_options_with_their_defaults(call_json):
    rules = {entry["name"]: entry for entry in call_json("list", "rule")["entries"]}
    assert rules["k_sigma"]["options"] == {"k": 2.33}
    models = {entry["name"]: entry for entry in call_json("list", "model")["entries"]}
    assert set(models["mlp"]["options"]) == {"hidden"}  # shape and classes come from the data


def test_runs(call, call_json, recorded):
    (row,) = call_json("runs", "--home", recorded)["runs"]
    with Ledger(recorded) as ledger:
        assert row["accuracy"] == ledger.record(1, 3).metrics["accuracy"]
    assert (row["run"], row["name"], row["state"], row["rounds"], row["preset"]) == (1, "tiny", "done", 3, "pid-made")
    assert "tiny" in call("runs", "--home", recorded)[1]


def test_a_client_in_doubt_is_different_and_harm_is_not_shown(call, call_json, workspace):
    doubt = fw.Note.of("on_trial", "b", watches=("far",), words="it lies far out", teaches=(3,))
    record = fw.RoundRecord(1, tuple("abcd"), np.ones(4), np.ones(4), notes=(doubt,))
    with Ledger(workspace) as ledger:
        ledger.append(ledger.start("ward", "flower", {}, {}), record)
    said = (
        "Client b was on trial in round 1: it lies far out; it teaches class 3, which hardly any other client does. "
        "Client b is different, harm not shown. If you know why it differs, run `fedwarden trust 1 b`."
    )
    assert said in call("show", "1")[1]
    assert said in call_json("show", "1")["verdict"]


def test_show_tells_of_every_client(call, call_json, recorded):
    told = call_json("show", "1", "--home", recorded)
    with Ledger(recorded) as ledger:
        records = ledger.records(1)
    assert told["attackers"] == ["0"]
    assert [c["client"] for c in told["clients"]] == [str(i) for i in range(6)]
    for client in told["clients"]:
        assert client["rounds"] == sum(client["client"] in r.client_ids for r in records)
        assert (client["excluded_in"] is None) == (client["reason"] == "")
    code, out, _ = call("show", "tiny", "--home", recorded)
    assert code == 0
    assert "label_flip" in out
    assert "centroid_distance" in out


def test_show_tells_who_helps_where_the_server_has_labelled_samples(call, call_json, recorded, tiny):
    assert call_json("show", "1", "--home", recorded)["contributions"] == {}
    settings = ["data.reserve=40", "guard.preset=auto", "guard.options={}"]
    assert call("run", tiny, "--quiet", *(part for s in settings for part in ("--set", s)))[0] == 0
    found = call_json("show", "tiny")["contributions"]
    assert set(found) == {str(i) for i in range(6)}
    assert all(c["rounds"] == 3 and c["kind"] in ("helps", "unclear", "no help", "harms") for c in found.values())
    out = call("show", "tiny")[1]
    assert "contribution, on the server's samples" in out
    assert all(c["words"] in out for c in found.values())


def test_show_one_round(call, call_json, recorded):
    told = call_json("show", "1", "--round", "2", "--home", recorded)
    with Ledger(recorded) as ledger:
        record = ledger.record(1, 2)
    assert told["watches"][0]["scores"] == record.watches[0].scores.tolist()
    assert told["excluded"] == list(record.excluded)
    assert "excluded after this round" in call("show", "1", "--round", "2", "--home", recorded)[1]


def test_replay_of_the_same_guard_changes_nothing(call, call_json, recorded):
    told = call_json("replay", "1", "--home", recorded)
    assert all(c["recorded"] == c["replayed"] for c in told["clients"])
    assert [c["client"] for c in told["clients"] if c["attacker"]] == ["0"]
    assert "The same decisions" in call("replay", "1", "--home", recorded)[1]


def test_replay_with_a_threshold_that_nobody_exceeds(call, call_json, recorded):
    told = call_json("replay", "1", "--set", "rule.k=9", "--home", recorded)
    assert all(c["replayed"] is None for c in told["clients"])
    assert told["guard"]["watches"][0]["rule"] == {"name": "k_sigma", "k": 9}
    before = {c["client"]: c["recorded"] for c in told["clients"]}
    assert any(before.values())  # so that the note below is about somebody
    code, out, _ = call("replay", "1", "--set", "rule.k=9", "--home", recorded)
    assert code == 0
    assert "no signals" in out
    assert "nothing was trained" in out


def test_the_head_of_a_replay_says_what_differs_from_the_recorded_guard(call, recorded):
    asked = (["--rule", "gesd", "--set", "rule.alpha=.01"], ["--preset", "pid_made", "--set", "options.k=9"])
    heads = [call("replay", "1", *some, "--home", recorded)[1].splitlines()[0] for some in asked]
    assert heads == [
        "run 1  tiny, replayed with its own guard, rule=gesd, rule.alpha=.01",
        "run 1  tiny, replayed with the preset pid_made, options.k=9",
    ]


def test_replay_of_a_run_that_only_watched_says_that_there_is_nothing_to_compare(call, tiny):
    assert call("run", tiny, "--set", "guard=watch", "--set", "rounds=1", "--quiet")[0] == 0
    _, out, _ = call("replay", "1")
    assert "No client is excluded or in doubt either way, so there is nothing to compare." in out
    assert "--policy quarantine" in out
    _, out, _ = call("replay", "1", "--policy", "quarantine", "--set", "rule.limit=0.1")
    assert "clients are treated differently" in out


def test_replay_of_a_preset_takes_its_options(call, call_json, recorded):
    told = call_json("replay", "1", "--preset", "pid_made", "--set", "options.k=9.0", "--home", recorded)
    assert told["guard"]["watches"][0]["rule"] == {"name": "k_sigma", "k": 9.0}
    code, _, err = call("replay", "1", "--set", "options.k=9.0", "--home", recorded)
    assert code == 2
    assert "--preset" in err


def test_show_tells_who_stood_out_and_stayed(call, tiny, tmp_path):
    setting = ["--set", "guard.preset=watch", "--set", "guard.options={limit = 0.1}"]
    assert call("run", tiny, *setting, "--home", tmp_path)[0] == 0
    out = call("show", "1", "--home", tmp_path)[1]
    assert "No client was excluded." in out
    assert "was flagged: " in out or "were flagged: " in out
    assert "excluded since" not in out


def test_tune_prints_a_guard_that_can_be_pasted(call, call_json, tiny):
    quick = ["--trials", "4", "--seeds", "1"]
    told = call_json("tune", tiny, *quick)
    assert told["best"]["f1"] >= told["given"]["f1"]
    scenario = load_scenario({**tomllib.loads(tiny.read_text()), **tomllib.loads(told["toml"])})
    history = scenario.guard.build().watches[0].history
    assert (history.kp, history.ki, history.kd) == tuple(told["best"]["values"][f"history.k{x}"] for x in "pid")
    code, out, _ = call("tune", tiny, *quick)
    assert code == 0
    assert told["toml"] in out


@pytest.mark.parametrize("path", [p for p in EXAMPLES if p.stem != "audit"], ids=lambda p: p.stem)
def test_examples_are_valid(path):
    scenario = load_scenario(path)
    assert scenario.name == path.stem
    scenario.guard.build()
    if "-of-" in path.stem:
        f, _, n = path.stem.split("-")[1:]
        assert (len(scenario.attackers()), scenario.data.clients) == (int(f), int(n))


def test_the_tour_names_every_key():
    text = next(p for p in EXAMPLES if p.stem == "digits").read_text()
    for table in (Scenario, AttackConfig, WatchConfig, *(type(v) for v in dict(Scenario()).values())):
        if issubclass(table, BaseModel):
            for name in table.model_fields:
                assert name in text


def test_nobody_is_called_honest_where_no_attack_was_simulated(call, recorded, tiny, workspace):
    assert "attacker" in call("show", "1", "--home", recorded)[1]
    assert call("run", tiny, "--set", "attacks=[]", "--set", "rounds=1", "--quiet")[0] == 0
    for args in ([], ["--round", "1"]):
        code, out, _ = call("show", "1", *args)
        assert code == 0
        assert "attacker" not in out


def test_a_run_of_another_engine_is_shown_but_not_resumed(call, workspace):
    with Ledger(workspace) as ledger:
        ledger.start("ward [7]", "elsewhere", {"rounds": 2}, {})
        ledger.append(1, fw.RoundRecord(1, ("[a]", "b"), np.ones(2), np.full(2, 0.5), flagged=np.zeros(2, bool)))
    code, out, _ = call("show", "1")
    assert code == 0
    assert "elsewhere" in out
    assert "[a]" in out
    assert "attacker" not in out
    assert "ward [7]" in call("runs")[1]
    for args in (["run", "--resume", "1"], ["run", "--resume"], ["replay", "1"]):
        code, _, err = call(*args)
        assert code == 2
        assert err.startswith("error: ")


def test_show_tells_what_an_auditor_saw(call, call_json, workspace):
    with Ledger(workspace) as ledger:
        ledger.start("eve", "auditor", {}, {})
        ledger.observe(1, [Observation(4, "weights", "cosine", "", 1.0, 0.1, 9.0, 1e-4, True)])
    code, out, _ = call("show", "1")
    assert code == 0
    assert "1 alarm, the first in round 4: weights, cosine" in " ".join(out.split())
    assert "rounds   0" not in out
    assert "1 alarm" in call_json("show", "1")["auditors"][0]
