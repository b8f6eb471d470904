"""The command ``audit``: an answer in words, as JSON, and one line for what is wrong."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from fedwarden.audit.verdict import Leakage, Sight
from fedwarden.cli.audit import table_of, words
from fedwarden.sim.change_audit import CHANGE, FRESH, PARTIAL, STILL, Answer, Source, load_plan
from fedwarden.studies.runner import results_file
from fedwarden.studies.tables import read_csv
from fedwarden_research.papers.shifts import all_changes

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit.toml"
SURE, UNSURE = Leakage(0.98, 0.93, 1.0, 1e-4, 1.0, 5e-6), Leakage(0.6, 0.4, 0.8, 0.3, 0.1, 5e-6)
SHIFT, NEW = Sight("shows", "shows"), Sight("does not show", "shows")
UNKNOWN = Sight("cannot tell", "cannot tell")
QUICK = ["--set", "rounds=7", "--set", "audit.start=6", "--set", "audit.seeds=4", "--set", "data.clients=2"]
QUICK += ["--set", "audit.client=1", "--set", "train.epochs=1", "--set", "train.group=1"]
QUICK += ["--set", "data.partition.size=60", "--set", "audit.probe=16", "--set", "model.hidden=[8]"]


def answer_of(sight, against, moved=None, settings=()):
    plan = load_plan(EXAMPLE, settings)
    verdicts = dict.fromkeys(plan.observers, against)
    first = dict.fromkeys(plan.observers, 11 if sight == SHIFT else None)
    source = Source("outputs", "mean_logits", verdicts, dict.fromkeys(plan.observers, sight), first, moved or {})
    return Answer(plan, 1.0, (source,), {STILL: 0.92, CHANGE: 0.91})


def test_a_change_that_shows_is_told_with_clients_round_and_classes():
    found = words(answer_of(SHIFT, {STILL: SURE, FRESH: SURE}, {"2": 4.0, "0": 3.0, "7": -2.5}))
    assert "label_shift (even = 0.8) changes 100.0 % of client 3's samples from round 11 on; 3 others" in found[0]
    assert "The change itself would show to 3 of 3 clients, from round 11 on" in found[1]
    assert "outputs, mean logits: AUROC .98 (.93 to 1.00)" in found[1]
    assert found[2] == "It shows which classes moved: outputs are higher for 0, 2 and lower for 7."
    assert found[-1] == "Clean accuracy after 13 rounds: 92.0 % without it, 91.0 % with it."
    assert not any("not show" in line for line in found)


def test_new_samples_alone_are_not_called_the_change():
    found = words(answer_of(NEW, {STILL: SURE, FRESH: UNSURE}))
    assert "would not show to any of 3 clients: no source tells it from fresh samples" in found[1]
    assert "That your data are new would show to 3 of 3 clients" in found[2]
    assert "with 10 seeds one of AUROC 0.81 or more would have been found with probability 0.8" in found[1]


def test_clients_to_whom_it_does_not_show_are_named_beside_those_to_whom_it_does():
    found = answer_of(SHIFT, {STILL: SURE, FRESH: SURE})
    found.sources[0].sees["2"] = NEW
    assert "would show to 2 of 3 clients" in words(found)[1]
    assert words(found)[3].startswith("The change itself would not show to 1 of 3 clients")
    assert found.change() == {"0": "shows", "1": "shows", "2": "does not show"}


def test_seeds_that_cannot_tell_give_no_verdict():
    few = ["audit.seeds=4", "audit.alpha=0.01"]
    found = words(answer_of(UNKNOWN, dict.fromkeys((STILL, FRESH), Leakage(1, 1, 1, 1 / 70, 1, 1 / 70)), settings=few))
    assert found[1] == (
        "Cannot tell what would show: even where its AUROC is 1, with 4 seeds a source reaches p = 0.014 at best, and "
        "the level is 0.01 (0.01 shared by 1 source). At least 5 seeds could tell."  # 1 / (10 choose 5) = 0.004
    )
    assert not any("would not show" in line or "would show to" in line or "Nor" in line for line in found)


def test_a_test_at_odds_with_its_interval_is_not_an_all_clear():
    found = words(answer_of(Sight("cannot tell", "shows"), {STILL: SURE, FRESH: UNSURE}))
    assert "That your data are new would show to 3 of 3" in found[1]
    assert "For 3 of 3 clients it is open whether the change itself shows" in found[2]
    assert not any("would not show" in line for line in found)


def test_the_example_is_answered_in_words_and_a_table(call):
    code, out, err = call("audit", EXAMPLE, *QUICK)
    assert code == 0
    assert "Cannot tell what would show" in out
    assert "would not show" not in out
    assert "--set audit.seeds=10" in out
    assert "from round 6 on; 1 other looks on; 4 seeds." in out
    assert "outputs mean logits" in out
    assert "audit: seed 4 of 4" in err


@pytest.mark.parametrize("nulls", [(STILL, FRESH), (STILL, FRESH, PARTIAL)])
def test_no_interval_of_the_table_is_broken_at_80_columns(nulls):
    found = answer_of(UNKNOWN, dict.fromkeys(nulls, Leakage(1.0, 1.0, 1.0, 1e-4, 1.0, 5e-6)))
    longest = replace(found.sources[0], source="representations", metric="procrustes")
    console = Console(width=80, file=StringIO())
    console.print(table_of(replace(found, sources=(longest,))))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[3].count("1.0 (1.0-1.0)") == len(nulls)
    assert " ".join(line.split("  ")[0] for line in lines[3:]).strip() == "representations procrustes"


def test_as_json(call_json):
    found = call_json("audit", EXAMPLE, *QUICK, "-q")
    assert found["observers"] == ["0"]
    assert found["change"] == {"name": "label_shift", "even": 0.8}
    assert {"no change", "fresh swap"} <= set(found["sources"][0]["against"]["0"])
    assert found["answer"][0].startswith("Planned: label_shift")
    verdict = found["verdict"]
    assert (verdict["change"], verdict["new"]) == ({"0": "cannot tell"}, {"0": "cannot tell"})
    assert (verdict["least_p"], verdict["needed"], verdict["auroc"]) == (1 / 70, 6, None)


def test_studies_take_their_own_data_only(call):
    for args, part in (
        (["shifts", "sensitivity", "--data", "mnits"], "'mnist'"),
        (["pid-made", "digits", "--data", "mnist"], "digits has its own"),
        (["shifts", "sensitivty"], "'sensitivity'"),
        (["shift"], "'shifts'"),
        ([], "one of pid-made, divergence, shifts"),
    ):
        code, _, err = call("reproduce", *args)
        assert code == 2
        assert part in err


def test_an_audit_writes_its_tables_as_csv(call, workspace, tmp_path):
    pytest.importorskip("matplotlib")
    kept = results_file(workspace, "layers-digits")
    kept.parent.mkdir(parents=True)
    for seed in range(4):
        found = {}
        for c in all_changes([0.8]):
            m = float(c.kind in ("fresh", "partial"))
            row = [11, 1 + m + seed / 100, 1, m, 0.1, m]
            readings = {f"weights/cosine/{layer}": [row] for layer in ("", "0.bias")}
            found[str(c)] = {"kind": c.kind, "even": c.even, "readings": readings}
        with kept.open("a") as file:
            file.write(
                json.dumps({"cell": {"data": "digits", "n": 2, "m": 1, "seed": seed}, "result": {"branches": found}})
                + "\n"
            )
    code, out, err = call("reproduce", "shifts", "layers", "--data", "digits", "--seeds", "4", "--out", tmp_path)
    assert code == 0, err
    header, rows = read_csv(tmp_path / "shifts" / "layers-digits-auroc.csv")
    assert header == ["source", "metric", "layer", "against no change", "against a fresh swap"]
    assert rows == [["weights", "cosine", layer, *["**1** (1 to 1)"] * 2] for layer in ("whole model", "0.bias")]
    assert "#### AUROC of the shift to 80-20" in out
