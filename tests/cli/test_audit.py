"""The command ``audit``: an answer in words, as JSON, and one line for what is wrong."""

import csv
import json
import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_wine

from fedwarden.audit.answer import CHANGE, FRESH, STILL, Answer, Measure, Source, words
from fedwarden.audit.verdict import Leakage, Sight
from fedwarden.cli.show import table_of
from fedwarden.sim import change_audit
from fedwarden.store.ledger import Ledger
from fedwarden.studies.runner import results_file
from fedwarden_research.papers.shifts import all_changes
from fedwarden_research.studies.tables import read_csv

EXAMPLE = Path(__file__).parents[2] / "examples" / "audit.toml"
SURE, UNSURE = Leakage(0.98, 0.93, 1.0, 1e-4, 1.0, 5e-6), Leakage(0.6, 0.4, 0.8, 0.3, 0.1, 5e-6)
SHIFT, NEW = Sight("shows", "shows"), Sight("does not show", "shows")
UNKNOWN = Sight("cannot tell", "cannot tell")
QUICK = ["--set", "rounds=7", "--set", "audit.start=6", "--set", "audit.seeds=4", "--set", "data.clients=2"]
QUICK += ["--set", "audit.client=1", "--set", "train.epochs=1", "--set", "train.group=1"]
QUICK += ["--set", "data.partition.size=60", "--set", "audit.probe=16", "--set", "model.hidden=[8]"]


MORE_GEARS = {"name": "label_shift", "shares": {"gear": 0.6}}


def answer_of(sight, against, moved=None, seeds=10, alpha=0.05, others=("Basel", "Chur", "Ulm")):
    first = dict.fromkeys(others, 11 if sight == SHIFT else None)
    verdicts, seen = dict.fromkeys(others, against), dict.fromkeys(others, sight)
    source = Source("outputs", "mean_logits", verdicts, seen, first, moved or {})
    accuracy = {STILL: 0.92, CHANGE: 0.91}
    return Answer("Delta", MORE_GEARS, 11, 13, 0, seeds, alpha, others, 0.3, (source,), accuracy)


def test_a_change_that_shows_is_told_with_clients_round_and_classes():
    found = words(answer_of(SHIFT, {STILL: SURE, FRESH: SURE}, {"gear": 4.0, "cog": 3.0, "nut": -2.5}))
    assert found[0] == (
        "Planned: from round 11 on, client Delta's samples are 60.0 % class gear. That changes 30.0 % of its samples; "
        "3 other clients look on; 10 seeds."
    )
    assert "The change itself would show to 3 of 3 clients, from round 11 on" in found[1]
    assert "outputs, mean logits, to 3 of them: AUROC .98 (.93 to 1.00)" in found[1]
    assert found[2] == "It shows which classes moved: outputs are higher for gear and cog and lower for nut."
    assert found[-1] == "Clean accuracy after 13 rounds: 92.0 % without the change, 91.0 % with it."
    assert not any("not show" in line for line in found)


def test_new_samples_alone_are_not_called_the_change():
    found = words(answer_of(NEW, {STILL: SURE, FRESH: UNSURE}))
    assert "would not show to any of 3 clients: no source tells it from fresh samples" in found[1]
    assert "That the data are new would show to 3 of 3 clients" in found[2]
    assert "with 10 seeds one of AUROC .81 or more would have been found with probability 0.8" in found[1]


def test_clients_to_whom_it_does_not_show_are_named_beside_those_to_whom_it_does():
    found = answer_of(SHIFT, {STILL: SURE, FRESH: SURE})
    found.sources[0].sees["Ulm"] = NEW
    assert "would show to 2 of 3 clients" in words(found)[1]
    assert words(found)[3].startswith("The change itself would not show to 1 of 3 clients")
    assert found.itself() == {"Basel": "shows", "Chur": "shows", "Ulm": "does not show"}


def test_clients_that_see_in_different_sources_are_counted_alike_in_sentence_and_table():
    first = answer_of(SHIFT, {STILL: SURE, FRESH: SURE})
    one, other = (replace(s, sees=dict(s.sees)) for s in first.sources * 2)
    one.sees["Ulm"], other.sees["Basel"], other.sees["Chur"] = NEW, NEW, NEW
    found = replace(first, sources=(one, replace(other, metric="mmd")))
    assert (
        "show to 3 of 3 clients, from round 11 on; most surely in outputs, mean logits, to 2 of them" in words(found)[1]
    )
    assert [row[3] for row in found.rows()] == ["2 of 3", "1 of 3", "3 of 3"]
    assert found.rows()[-1][0] == "any source"


def test_what_helps_is_told_with_its_price():
    sees = {"Basel": "does not show", "Chur": "shows", "Ulm": "does not show"}
    helps = (Measure("gradual", 9, sees, UNSURE, 0.9), Measure("smoothing", 0.9, sees, UNSURE, 0.905))
    assert words(replace(answer_of(SHIFT, {STILL: SURE, FRESH: SURE}), measures=helps))[-2:] == [
        "If you bring the change in gradually, over 10 rounds, the change shows to 1 of 3 clients; the price: what "
        "you make counts in full only after that; clean accuracy 90.0 %.",
        "If you send a moving average of your updates, 90.0 % of the past kept, the change shows to 1 of 3 clients; "
        "the price: clean accuracy 90.5 %.",
    ]


def test_seeds_that_cannot_tell_give_no_verdict():
    equal = dict.fromkeys((STILL, FRESH), Leakage(1, 1, 1, 1 / 70, 1, 1 / 70))
    found = words(answer_of(UNKNOWN, equal, seeds=4, alpha=0.01))
    assert found[1] == (
        "Cannot tell what would show: even where its AUROC is 1, with 4 seeds a source reaches p = 0.014 at best, and "
        "the level is 0.01 (0.01 shared by 1 source). At least 5 seeds could tell."  # 1 / (10 choose 5) = 0.004
    )
    assert not any("would not show" in line or "would show to" in line or "Nor" in line for line in found)


def test_a_test_at_odds_with_its_interval_is_not_an_all_clear():
    found = words(answer_of(Sight("cannot tell", "shows"), {STILL: SURE, FRESH: UNSURE}))
    assert "That the data are new would show to 3 of 3" in found[1]
    assert "For 3 of 3 clients it is open whether the change itself shows" in found[2]
    assert not any("would not show" in line for line in found)


def test_the_example_is_answered_in_words_and_a_table(call):
    code, out, err = call("audit", EXAMPLE, *QUICK)
    assert code == 0
    assert "Cannot tell what would show" in out
    assert "would not show" not in out
    assert "--set audit.seeds=10" in out
    assert "from round 6 on, client 1's samples are 40.0 % class 8." in out
    assert "1 other client looks on; 4 seeds." in out
    assert "recorded as run 1" in out
    assert "outputs mean logits" in out
    assert "audit: rehearsal 4 of 4" in err


def test_no_interval_of_the_table_is_broken_at_80_columns():
    found = answer_of(UNKNOWN, dict.fromkeys((STILL, FRESH), Leakage(1.0, 1.0, 1.0, 1e-4, 1.0, 5e-6)))
    longest = replace(found.sources[0], source="representations", metric="procrustes")
    console = Console(width=80, file=StringIO())
    console.print(table_of(replace(found, sources=(longest,))))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[3].count("1.0 (1.0-1.0)") == 2
    assert [line.split("  ")[0] for line in lines[3:]] == ["representations procrustes", "any source"]


def test_as_json(call_json):
    found = call_json("audit", EXAMPLE, *QUICK, "-q")
    assert found["observers"] == ["0"]
    assert found["change"] == {"name": "label_shift", "shares": {"8": 0.4}}
    assert {"no change", "fresh swap"} <= set(found["sources"][0]["against"]["0"])
    assert found["answer"][0].startswith("Planned: from round 6 on, client 1's samples")
    verdict = found["verdict"]
    assert (verdict["change"], verdict["new"]) == ({"0": "cannot tell"}, {"0": "cannot tell"})
    assert (verdict["least_p"], verdict["needed"], verdict["auroc"]) == (1 / 70, 6, None)


@pytest.fixture
def wine(tmp_path, monkeypatch):
    """Four cellars with the wines of scikit-learn: named classes, named columns, and one that is constant."""
    found, rng = load_wine(), np.random.default_rng(0)
    names = np.array(["Barolo", "Grignolino", "Barbera"])[found.target]
    cellars = np.array(["Alba", "Asti", "Bra", "Canelli"])[rng.permutation(len(names)) % 4]
    keep = ~((cellars == "Bra") & (names == "Barolo"))
    with (tmp_path / "wine.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["alcohol", "hue", "year", "cellar", "wine"])
        for row, cellar, name in zip(found.data[keep], cellars[keep], names[keep], strict=True):
            table.writerow([row[0], row[10], 1990, cellar, name])
    (tmp_path / "wine.toml").write_text(WINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "wine.toml"


WINE = """
rounds = 6
data = {dataset = {name = "csv", file = "wine.csv", label = "wine", client = "cellar"}, reserve = 60}
model = {name = "mlp", hidden = [4]}
train = {batch_size = 16, group = 1}
guard = {preset = "none"}
audit = {client = "Bra", start = 6, seeds = 4, probe = 8, change = {name = "class_new", class = "Barolo"}}
"""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("name='label_shift', shares={Barbera = 0.6}", "client Bra's samples are 60.0 % class Barbera"),
        ("name='class_drop', class='Barbera'", "client Bra has no more samples of class Barbera"),
        ("name='class_new', class='Barolo'", "client Bra has samples of class Barolo for the first time"),
        (
            "name='feature_shift', columns={alcohol = 2.0}",
            "at client Bra alcohol rises by 2 of its standard deviations",
        ),
        ("name='label_flip', fraction=0.5", "label_flip (fraction = 0.5) changes client Bra's data"),
    ],
)
def test_a_change_is_planned_and_told_by_names(call, wine, change, sentence):
    code, out, err = call("audit", wine, "--set", f"audit.change={{{change}}}")
    assert code == 0, err
    assert sentence in " ".join(out.split())


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("audit.client=Bar", "audit.client: there is no client 'Bar'; did you mean 'Bra'?"),
        ("audit.change={name='class_drop', class='Barbara'}", "there is no class 'Barbara'; did you mean 'Barbera'?"),
        ("audit.change={name='class_drop', class='Barolo'}", "no samples of class Barolo, only of Barbera, Grignolino"),
        ("audit.change={name='class_new', class='Barbera'}", "it has class Barbera already"),
        (
            "audit.change={name='class_new', class='Barolo', amount=1.0}",
            "class Barolo that no client holds; its part of",
        ),
        ("audit.change={name='label_shift', shares={Barolo=0.1}}", "no samples of class Barolo"),
        (
            "audit.change={name='label_shift', shares={Barbera=1.1}}",
            "expected shares from 0 to 1, .*; got Barbera = 1.1",
        ),
        (
            "audit.change={name='label_shift', shares={Barbera=0.2, Grignolino=0.2}}",
            "the shares add up to 0.4; expected 1",
        ),
        ("audit.change={name='feature_shift', columns={alcool=2.0}}", "no column of numbers 'alcool'; did you mean"),
        ("audit.change={name='feature_shift', columns={year=2.0}}", "column 'year' is constant there"),
        ("attacks=[{name='label_flip', clients=['Albba']}]", "there is no client 'Albba'; did you mean 'Alba'?"),
    ],
)
def test_a_mistake_is_one_line_and_records_nothing(call, wine, workspace, setting, message):
    code, _, err = call("audit", wine, "--set", setting)
    assert code == 2
    assert re.search(message, err), err
    assert len(err.splitlines()) == 1
    with Ledger(workspace) as ledger:
        assert not ledger.runs()


def test_an_audit_is_a_run_that_is_listed_shown_and_reported(call, call_json, wine, tmp_path):
    pytest.importorskip("plotly")
    code, _, err = call("audit", wine, "-o", tmp_path / "audit.html")
    assert code == 0, err
    page = (tmp_path / "audit.html").read_text()
    assert "client Bra has samples of class Barolo for the first time" in page
    assert "<h2>What the others would see</h2>" in page
    assert "<h2>What helps</h2>" in page
    assert "fedwarden audit run.toml" in page
    assert call_json("runs")["runs"][0]["verdict"] == "cannot tell with so few seeds"
    assert "class Barolo for the first time" in " ".join(call("show", "1")[1].split())
    assert call_json("show", "1")["answer"]["observers"] == ["Alba", "Asti", "Canelli"]


def test_an_interrupted_audit_keeps_its_seeds_and_goes_on_to_the_same_answer(
    call, call_json, wine, tmp_path, monkeypatch
):
    pytest.importorskip("plotly")
    whole = call_json("audit", wine, "-q")
    assert call_json("report", "1", "-o", tmp_path / "audit.html")["summary"] == whole["answer"]
    played = change_audit.rehearse
    monkeypatch.setattr(change_audit, "rehearse", cut := Cut(played, 2))
    code, _, err = call("audit", wine)
    assert code == 130
    assert f"interrupted; continue with: fedwarden audit {wine} --resume 2" in err
    assert call_json("runs")["runs"][0]["verdict"] == "2 of 4 seeds played"
    shown = " ".join(call("show", "2")[1].split())
    assert "has played 2 seeds and has no answer yet; continue with: fedwarden audit FILE --resume 2" in shown
    cut.left = 2
    again = call_json("audit", wine, "-q", "--resume", "2")
    assert cut.left == 0
    assert {**again, "run": 1} == whole
    code, _, err = call("audit", wine, "--resume", "2")
    assert (code, "run 2 is no unfinished audit of this file with these settings" in err) == (2, True)


class Cut:
    """Rehearses some times, and then Ctrl-C comes."""

    def __init__(self, rehearse, left):
        self.rehearse, self.left = rehearse, left

    def __call__(self, *args, **options):
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        return self.rehearse(*args, **options)


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
