"""The bounds of PID-MADE in closed form and on small runs, its thresholds and edge cases, times and tuning."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from fedwarden.core.registry import describe
from fedwarden.history.pid import PID
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.tune import Grade
from fedwarden_research.papers import pid_made_times as times
from fedwarden_research.papers.pid_made import TABLE_3
from fedwarden_research.papers.pid_made_theory import (
    bounds_table,
    rate_bound,
    rate_hold,
    rate_sheets,
    run,
    scenario,
    score_bound,
    shift_bound,
    spread,
)
from fedwarden_research.papers.pid_made_thresholds import (
    EDGE_CASES,
    EDGES,
    THEOREM_5,
    THRESHOLDS,
    edge_hold,
    edge_sheets,
    threshold_hold,
    threshold_sheets,
)
from fedwarden_research.papers.pid_made_tuning import EXPERT, distinct, holds, sheets, speed, tuned


@pytest.mark.parametrize(("n", "f"), [(5, 1), (20, 2), (20, 9)])
def test_the_mean_moves_no_farther_than_lemma_2_says(n, f):
    """Equality where all honest clients send x and all others -x: the mean moves by 2 f / n ||x||."""
    rows = np.random.default_rng(n + f).normal(size=(n, 7))
    moved = np.linalg.norm(rows.mean(axis=0) - rows[f:].mean(axis=0))
    assert moved <= shift_bound(f, n, np.linalg.norm(rows, axis=1).max())
    x = np.full(7, 3.0)
    rows = np.array([-x] * f + [x] * (n - f))
    moved = np.linalg.norm(rows.mean(axis=0) - rows[f:].mean(axis=0))
    assert moved == pytest.approx(shift_bound(f, n, np.linalg.norm(x)))


def test_theorem_3_does_not_follow_from_lemma_1():
    """On a line, optimum 0, honest clients at 1, attacker at 1.2: the spread shrinks, the mean hardly comes nearer."""
    rows = torch.tensor([[1.0], [1.0], [1.2]], dtype=torch.float64)
    assert spread(rows[:2]) <= spread(rows)
    near, far = rows[:2].mean(), rows.mean()
    assert near > rate_bound(2, 3) * far


@pytest.mark.parametrize(
    ("ki", "kd", "below"), [(0.5, 0.05, True), (1.0, 1.0, True), (0.5, 1.5, False), (1.2, 0, False)]
)
def test_theorem_4_needs_coefficients_of_at_most_one(ki, kd, below):
    """Distances of 0 or Delta = 1 over four rounds: the largest score in round t against t Delta."""
    history, held = PID(ki=ki, kd=kd), []
    for path in product((0.0, 1.0), repeat=4):
        state = history.init()
        for t, distance in enumerate(path, 1):
            state, scores = history.step(state, ("a",), np.array([distance]))
            held.append(scores[0] <= score_bound(t, 1.0, 0.0) + 1e-12)
    assert all(held) == below


def test_the_bounds_on_a_small_run():
    found = run({"long": scenario(0, 0, 3), "run": {**scenario(4, 0, 3), "rounds": 3}})
    assert {name: len(pairs) for name, pairs in found.items()} == dict.fromkeys(found, 3)
    for name in ("lemma 2", "theorem 4"):
        assert all(left <= right for left, right in found[name])
    spreads, rates = np.array(found["eq. 18"]), np.array(found["theorem 3"])
    assert (spreads[:, 0] < spreads[:, 1]).all()
    assert (rates > 0).all()


def test_how_often_a_bound_holds_by_hand():
    pairs = [[1.0, 2.0], [2.0, 2.0], [3.0, 2.0], [4.0, 2.0]]
    found = [{"cell": {"attackers": 2, "seed": 0}, "result": {"eq. 18": pairs, "theorem 3": pairs}}]
    assert bounds_table(found, "theorem 3")[1] == [["2 of 20", "50", "0.5", "1.25", "2", "4", "1"]]
    assert "holds in 50 % of the rounds at 2 of 20" in rate_hold({s.name: s for s in rate_sheets(found)})


@pytest.mark.parametrize("item", [THEOREM_5, EDGE_CASES], ids=lambda item: item.name)
def test_the_cells_of_thresholds_and_edge_cases(item):
    for cell, table in item.cells([1], "cpu"):
        made = load_scenario(table)
        (watch,) = made.guard.build().watches
        assert len(made.attackers()) == cell["attackers"]
        assert watch.signal.centre == cell["centre"]
        assert watch.history.ki == (EDGES[cell["edge"]][2] if "edge" in cell else 0.5)
        name = "k_sigma" if "edge" in cell else THRESHOLDS[cell["threshold"]]["name"]
        assert describe(watch.rule)["name"] == name


def summary(caught, wronged, area):
    return {"caught": caught, "wronged": wronged, "watches": {"pid": {"auroc_by_round": area}}, "accuracy": 0.9}


def test_the_tables_of_thresholds_and_edge_cases_by_hand():
    found = [
        {"cell": dict(c), "result": summary(min(c["attackers"], 3), int(c["attackers"] == 0), 0.5)}
        for c, _ in THEOREM_5.cells([0, 1], "cpu")
    ]
    told = threshold_hold({s.name: s for s in threshold_sheets(found)})
    assert told == (
        "2 of 20 attackers are all excluded by every threshold. 6 of 20 attackers are all excluded by no threshold. "
        "Where no client attacks, the thresholds exclude 1.0, 1.0, 1.0, 1.0, 1.0 of 20 clients."
    )
    found = [{"cell": dict(c), "result": summary(0, 0, 0.75)} for c, _ in EDGE_CASES.cells([0], "cpu")]
    told = edge_hold({s.name: s for s in edge_sheets(found)})
    assert "case 2, 0.0 and 0.0 of 8" in told
    assert "At most 3 of 20 values" in told


def test_times_grow_as_they_were_made_to():
    """PID linear in n and d; RFA 10 times as long; Krum quadratic in n."""
    names = ("PID-MADE", *times.RULES)
    result = {
        "small": {
            name: {str(n): n * (1e-3 if name == "PID-MADE" else 1e-2) for n in TABLE_3} for name in ("PID-MADE", "RFA")
        },
        "clients": {name: {str(n): 1e-6 * n ** (2 if name == "Krum" else 1) for n in times.CLIENTS} for name in names},
        "parameters": {name: {str(d): 1e-9 * d for d in times.PARAMETERS} for name in names},
    }
    found = [{"cell": {"seed": 0}, "result": result}]
    told = times.times_hold({s.name: s for s in times.table_3(found)})
    assert "PID grows 4.0 times (in the paper 2.1)" in told
    assert "RFA takes 10.0 times as long as PID, in the paper 29.9 times" in told
    told = times.slopes_hold({s.name: s for s in times.slopes(found)})
    assert "PID-MADE 1.00" in told
    assert "Krum 2.00" in told


def test_every_rule_of_table_1_can_be_timed(monkeypatch):
    monkeypatch.setattr(times, "seconds", lambda call: (call() and 1.0) or 1.0)
    rows = times.rows_of(10, 50, 0)
    assert [times.time_of(name, rows) for name in ("PID-MADE", *times.RULES)] == [1.0] * (1 + len(times.RULES))


def test_settings_that_do_the_same_are_told_once():
    best, second = Grade(1.0, 2, 2, 0, 2, 40, 0, 360), Grade(1.0, 2, 2, 0, 5, 40, 0, 360)
    assert speed(best) == pytest.approx(-2 / 40)
    tried = [({"history.kp": 0.5}, best), ({"history.kp": 0.7}, best), ({"history.kp": 0.9}, second), (EXPERT, second)]
    assert distinct(tried) == [tried[0], tried[3]]


def test_a_search_is_retrained_and_told():
    pytest.importorskip("optuna")
    table = {
        "rounds": 4,
        "data": {"dataset": "digits", "clients": 10, "validation": 0.1},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"epochs": 1, "workers": 1, "group": 10},
        "attacks": [{"name": "sign_flip", "scale": 3.0, "count": 1}],
        "guard": {"preset": "pid_made"},
    }
    result = tuned(table, 5)
    assert result["expert"]["values"] == EXPERT
    assert len(result["F1"]["run"]["honest_loss"]) == 4
    made = sheets([{"cell": {"seed": 0}, "result": result}])
    assert made[0].records()[0]["K_I"] == "0.5"
    assert holds({s.name: s for s in made}).startswith("On honest clients the expert's coefficients need >20 rounds")
