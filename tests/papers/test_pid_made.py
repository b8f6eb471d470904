"""The items of PID-MADE: every cell is the setting that it names, and tables and sentences by hand."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers import pid_made_attackers, pid_made_convergence
from fedwarden_research.papers.pid_made import GUARDS, RULES, SETTINGS, run
from fedwarden_research.papers.pid_made_attackers import (
    BLOOD,
    FLIPPED,
    blood_hold,
    blood_sheets,
    flipped_hold,
    flipped_sheets,
    many_hold,
    many_sheets,
)
from fedwarden_research.papers.pid_made_clients import FIGURE_10, FIGURE_11, count
from fedwarden_research.papers.pid_made_convergence import CASES, FIGURE_2, loss_hold, loss_sheets, rounds_table
from fedwarden_research.papers.pid_made_items import PAPER
from fedwarden_research.studies.tables import Sheet

RUNS = [item for item in PAPER.items if item.run is run]


def result(accuracy, loss, caught=0, wronged=0, wrong=0.0, let_in=0.0, rounds=None):
    """A run whose curves rise or fall in equal steps to their last value, the same in every way of measuring."""
    rounds = rounds or 10
    rise = [round(accuracy * (t + 1) / rounds, 4) for t in range(rounds)]
    fall = [round(2 - (2 - loss) * (t + 1) / rounds, 4) for t in range(rounds)]
    ways = {f"{way}{what}": c for way in ("", "honest_", "theirs_") for what, c in (("accuracy", rise), ("loss", fall))}
    return {
        **ways, "caught": caught, "wronged": wronged, "wrong": [wrong] * rounds, "let_in": [let_in] * rounds,
        "excluded": {},
    }  # fmt: skip


def found(cases, rules, make):
    keys = ("data", "clients", "attackers", "fraction")
    return [
        {"cell": {**dict(zip(keys, case, strict=True)), "rule": rule, "seed": seed}, "result": make(case, rule, seed)}
        for case in cases
        for rule in rules
        for seed in (0, 1, 2)
    ]


@pytest.mark.parametrize("item", RUNS, ids=lambda item: item.name)
def test_every_cell_is_the_setting_that_it_names(item):
    for cell, table in item.cells([3], "cpu"):
        scenario, setting = load_scenario(table), SETTINGS[cell["data"]]
        assert (scenario.seed, scenario.data.clients, len(scenario.attackers())) == (
            3, cell["clients"], cell["attackers"],
        )  # fmt: skip
        assert (scenario.rounds, scenario.train.epochs) == (setting.rounds, setting.epochs)
        assert {a.options["fraction"] for a in scenario.attacks} == {cell["fraction"]}
        warden = scenario.guard.build()
        for option in ("f", "b"):  # who asks for the number of attackers is told the true one
            assert getattr(warden.aggregator, option, cell["attackers"]) == cell["attackers"]
        if cell["rule"] == "PID-MADE":
            (watch,) = warden.watches
            assert (watch.history.kp, watch.history.ki, watch.history.kd) == (1.0, setting.ki, 0.05)
            assert (watch.rule.k, watch.start_round) == (2.33, 2)
    assert {t["train"]["device"] for _, t in item.cells([0], "cuda")} == {"cuda"}


def test_rounds_to_a_level_by_hand():
    """Accuracy rises to .98 in ten equal steps: .9 is first passed in round 10; to .5, never; the loss likewise."""

    def make(case, rule, seed):
        good = rule != "Krum" or seed == 0
        return result(0.98 if good else 0.5, 0.1 if good else 1.0)

    rows = {(r[0], r[2]): r for r in rounds_table(found(CASES, RULES, make), "accuracy")[1]}
    assert rows["its", "PID-MADE"][3:] == ["10", "10", "10", "10", "5", "3"]
    assert rows["its", "Krum"][3:] == [">15", "10 to >15", ">15", "10 to >15", "6", "3"]
    assert rows["pneumonia", "RFA"][7] == "-"  # the paper's text has no number


def test_the_sentence_on_convergence_follows_the_table():
    def make(case, rule, seed):
        return result({"PID-MADE": 0.99, "FedAvg": 0.5, "Krum": 0.5}.get(rule, 1.0), 0.1, rounds=40)

    told = FIGURE_2.holds({s.name: s for s in FIGURE_2.sheets(found(CASES, RULES, make))})
    # .9 of 40 equal steps to .99 is passed in round ceil(.9 * 40 / .99) = 37, to 1.0 in round 36
    assert math.ceil(0.9 * 40 / 0.99) == 37
    assert "femnist: 37 rounds, FedAvg >40, more for 1 of 6 rules" in told
    assert told.startswith("By honest clients the claim holds on 0 of 3 data sets")


def test_the_last_loss_by_hand():
    def make(case, rule, seed):
        return result(0.9, {"RFA": 0.1, "PID-MADE": 0.2}.get(rule, 0.3), rounds=40)

    told = loss_hold({s.name: s for s in loss_sheets(found(CASES, RULES, make))})
    assert "femnist: 0.200, number 2 of 9 (RFA 0.100)" in told


def test_table_4_by_hand():
    """Client-rounds are counted from round 2 on: of ten rounds nine."""

    def make(case, rule, seed):
        if rule == "FedAvg":
            return result(0.9, 0.3, let_in=2.0)
        return result(0.95, 0.2, caught=2, wrong=float(seed == 0))

    sheets = {s.name: s for s in flipped_sheets(found(FLIPPED, GUARDS, make))}
    rows = {(r["labels flipped"], r["rule"]): r for r in sheets["rates"].records()}
    assert (rows["10 %", "FedAvg"]["FN"], rows["10 %", "FedAvg"]["paper's accuracy"]) == ("18.0", "93.22")
    mine = rows["10 %", "PID-MADE"]
    assert (mine["FP"], mine["paper's FP"], mine["FN"], mine["paper's FN"]) == ("3.0", "0", "0.0", "3")
    assert mine["honest clients"] == "95.0 ± 0.0"
    assert "100 %: FP 3.0, FN 0.0, +5.0 and +5.0 points" in flipped_hold(sheets)


def test_more_attackers_by_hand():
    def make(case, rule, seed):
        all_found = rule == "auto" or (rule == "PID-MADE" and case[2] <= 6)
        return result(0.9, 0.3, caught=case[2] if all_found else 0, wronged=int(rule == "PID-MADE" and case[2] == 20))

    told = blood_hold({s.name: s for s in blood_sheets(found(BLOOD, GUARDS, make))})
    assert told.startswith("At most 6 of 40 values can exceed mean + 2.33 sigma")
    assert "PID-MADE excludes 5.0 of 5, 0.0 of 8, 0.0 of 10, 0.0 of 15, 0.0 of 20 attackers" in told
    assert "auto excludes 5.0 of 5, 8.0 of 8" in told
    cases = [("pneumonia", 8, f, 1.0) for f in (0, 2, 3)]
    told = many_hold({s.name: s for s in many_sheets(found(cases, GUARDS, make))})
    assert told == (
        "PID-MADE excludes every attacker in 2 of 2 cases and some honest client in 0 of 3; auto excludes every "
        "attacker in 2 of 2 cases and some honest client in 0 of 3."
    )


def test_pictures_of_what_there_is(tmp_path, monkeypatch):
    drawn = {}

    def draw(path, panels, *rest, **options):
        drawn[path.name] = (panels, options)

    monkeypatch.setattr(pid_made_attackers, "curves", draw)
    monkeypatch.setattr(pid_made_convergence, "curves", draw)
    for item in RUNS:
        assert item.pictures([], tmp_path, item.name) == []
        runs = [{"cell": dict(c), "result": result(0.9, 0.3, 5, rounds=t["rounds"])} for c, t in item.cells([0], "cpu")]
        assert {p.name for p in item.pictures(runs, tmp_path, item.name)} <= set(drawn)
    panels, options = drawn["figure-4-attackers.svg"]
    assert list(options["upright"].values()) == [6.0]
    assert panels["share of the attackers excluded"]["auto"] == {f: [5 / f] for f in (5, 8, 10, 15, 20)}
    panels, _ = drawn["figure-2-accuracy.svg"]
    assert panels["pneumonia: accuracy 0.98 within 20 rounds"]["honest clients"]["Krum"] == [21.0]  # not reached


def test_the_clients_are_counted():
    scenario = {"data": {"dataset": "digits", "partition": "iid", "clients": 3}}
    counts = count(scenario)["counts"]
    assert [sum(c) for c in counts] == [479, 479, 479]
    assert [len(c) for c in counts] == [10, 10, 10]
    for item, by_class in ((FIGURE_10, [[10, 70], [20, 30]]), (FIGURE_11, [[200, 600], [300, 700]])):
        sheets = item.sheets([{"cell": {"data": "x", "seed": 0}, "result": {"counts": by_class}}])
        told = item.holds({s.name: s for s in sheets})
        assert all(isinstance(s, Sheet) for s in sheets)
        assert ("10 to 70" if item is FIGURE_10 else "200 to 300 samples of the first class and 600 to 700") in told


def test_one_small_run_has_both_ways_of_measuring():
    """Two of six flip all labels of two classes: a model that is right about clean labels is wrong about theirs."""
    table = {
        "rounds": 3,
        "data": {"dataset": "digits", "clients": 6, "validation": 0.2},
        "model": {"name": "mlp", "hidden": [16]},
        "train": {"lr": 0.2, "epochs": 4, "workers": 1},
        "attacks": [{"name": "label_flip", "count": 2}],
        "guard": {"preset": "none"},
    }
    seen = run(table)
    assert {len(seen[k]) for k in ("accuracy", "loss", "honest_accuracy", "theirs_loss", "wrong", "let_in")} == {3}
    assert seen["let_in"] == [2.0] * 3
    assert seen["theirs_accuracy"][-1] < seen["honest_accuracy"][-1] - 0.1
    assert seen["theirs_loss"][-1] > seen["honest_loss"][-1]
    assert (seen["caught"], seen["wronged"]) == (0, 0)


def test_the_short_table_of_the_guard_is_that_of_the_settings():
    """docs/results/guard.md has by hand what the CSV of the item has in full."""
    results = Path(__file__).parents[2] / "docs" / "results"
    with (results / "pid-made" / "settings-last.csv").open() as file:
        full = list(csv.DictReader(file))
    names = {"FEMNIST": "femnist-inverted", "PneumoniaMNIST": "pneumonia"}
    lines = [line.strip("| \n").split(" | ") for line in (results / "guard.md").read_text().splitlines()]
    short = [cells for cells in lines if cells[0] in names]
    assert len(short) == len(full) / 3
    for data, flipped, labels, *found, accuracies in short:
        flip, _, clients = flipped.split()
        key = (names[data], clients, flip, labels)
        rows = {r["rule"]: r for r in full if (r["data"], r["clients"], r["flip"], r["labels"]) == key}
        wanted = [rows[rule][f"{who} excluded"] for rule in ("PID-MADE", "auto") for who in ("attackers", "honest")]
        assert [float(x) for x in found if x != "-"] == [
            float(x) for x, f in zip(wanted, found, strict=True) if f != "-"
        ]
        means = [rows[rule]["test data"].split()[0] for rule in ("FedAvg", "PID-MADE", "auto")]
        assert accuracies.split(" / ") == means
