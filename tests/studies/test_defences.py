"""The grid of defences: its cells, and its verdicts and tables from made-up results."""

from __future__ import annotations

import json
import re
from itertools import product

import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.studies.defences import (
    ALPHAS,
    ATTACKS,
    CLIENTS,
    DEFENCES,
    PROBED,
    SETTINGS,
    SHARES,
    best_cells,
    cells,
    detections,
    draw,
    losses,
    page,
    ranking,
    safety,
    successes,
    table,
    verdict,
    write,
)
from markdown_rows import rows


def result(attack, share, alpha, defence, accuracy, seed=0, attackers=0, caught=0, wronged=0):
    cell = {"attack": attack, "share": share, "alpha": alpha, "defence": defence, "seed": seed}
    return {
        "cell": cell,
        "result": {"late_accuracy": accuracy, "attackers": attackers, "caught": caught, "wronged": wronged},
    }


def flips(share, alpha, **accuracies):
    names = {"auto": "auto", "mean": "FedAvg", "krum": "Krum"}
    return [result("sign flip", share, alpha, names[d], a) for d, a in accuracies.items()]


RESULTS = [
    *flips(0.1, 0.5, auto=0.95, mean=0.955, krum=0.7),  # within a point
    *flips(0.25, 0.5, auto=0.90, mean=0.50, krum=0.93),  # three points below
    *flips(0.4, 100.0, auto=0.9, mean=0.1, krum=0.2),  # best
    result("none", 0.0, 0.5, "auto", 0.9),
    result("none", 0.0, 0.5, "FedAvg", 0.96),  # six points below
]


@pytest.mark.parametrize("data", SETTINGS)
def test_the_grid_has_every_combination_once(data):
    made = cells([0, 1], data, rounds=7)
    assert len(made) == (1 + len(ATTACKS) * len(SHARES)) * len(ALPHAS) * len(DEFENCES) * 2
    assert len({json.dumps(cell, sort_keys=True) for cell, _ in made}) == len(made)
    for cell, scenario in made:
        assert (scenario["seed"], scenario["rounds"]) == (cell["seed"], 7)
        assert scenario["data"]["partition"]["alpha"] == cell["alpha"]


@pytest.mark.parametrize("attack", ["none", *ATTACKS])
def test_every_cell_is_a_scenario_with_that_many_attackers(attack):
    wanted = [
        (cell, given)
        for cell, given in cells([0])
        if cell["attack"] == attack
        and cell["alpha"] == ALPHAS[0]
        and (attack == "label flip" or cell["defence"] == "auto")
    ]
    assert len(wanted) == (1 if attack == "none" else 3) * (len(DEFENCES) if attack == "label flip" else 1)
    for cell, given in wanted:
        scenario = load_scenario(given)
        assert len(scenario.attackers()) == round(cell["share"] * CLIENTS)
        scenario.guard.build()


def test_rules_are_told_no_more_attackers_than_they_tolerate():
    for f in (2, 5, 8):
        n = CLIENTS
        told = {name: DEFENCES[name](f)["aggregator"] for name in ("trimmed mean", "Krum", "Multi-Krum", "Bulyan")}
        assert told["trimmed mean"]["b"] == f < n / 2
        assert told["Krum"]["f"] == told["Multi-Krum"]["f"] == f <= (n - 3) / 2
        assert told["Bulyan"]["f"] == min(f, 4)  # 4f + 3 <= 20
        assert DEFENCES["NNM + trimmed mean"](f)["aggregator"]["then"]["b"] == f
    assert [DEFENCES[guard](5) for guard in ("auto", "PID-MADE")] == [{"preset": "auto"}, {"preset": "pid_made"}]


def test_gaps_to_the_best_by_hand():
    found = {(a, s, alpha): gap for a, s, alpha, gap in best_cells(RESULTS)}
    assert found == {
        ("none", 0.0, 0.5): pytest.approx(0.06),
        ("sign flip", 0.1, 0.5): pytest.approx(0.005),
        ("sign flip", 0.25, 0.5): pytest.approx(0.03),
        ("sign flip", 0.4, 100.0): 0.0,
    }
    assert len(best_cells(RESULTS, "Krum")) == 3  # it was not run without attackers
    assert best_cells(RESULTS, "median") == []


def test_the_verdict_by_hand():
    text = verdict(RESULTS)
    assert text.startswith("`auto` is best or within one point of the best in 2 of 4 cells (50 %); the bar is 90 %.")
    assert rows(text) == [["none", "0 %", "0.5", "6.0"], ["sign flip", "25 %", "0.5", "3.0"]]
    best = verdict(flips(0.1, 0.5, auto=0.9, mean=0.9))
    assert best == "`auto` is best or within one point of the best in 1 of 1 cells (100 %); the bar is 90 %."
    assert verdict(flips(0.1, 0.5, mean=0.9)) == "`auto` was not run."
    assert verdict([]) == "`auto` was not run."


def test_editions_of_auto_are_not_compared_with_one_another():
    both = [result("IPM", 0.1, 0.5, d, a) for d, a in {"auto": 0.8, PROBED: 0.9, "Krum": 0.805}.items()]
    assert best_cells(both)[0][3] == pytest.approx(0.005)
    assert best_cells(both, "Krum")[0][3] == pytest.approx(0.095)


def test_what_a_probe_leaves_to_lose_by_hand():
    results = [
        result("none", 0.0, 0.5, "FedAvg", 0.96),
        result("none", 0.0, 0.5, PROBED, 0.95),
        result("IPM", 0.25, 0.5, PROBED, 0.9),
        result("IPM", 0.4, 0.5, PROBED, 0.835),
        result("IPM", 0.4, 100.0, PROBED, 0.1),  # FedAvg was not run there
    ]
    assert [round(loss[3], 3) for loss in losses(results)] == [0.01, 0.06, 0.125]
    assert safety(results) == (
        "`auto with probe` lies more than 10 points below FedAvg without attack in 1 of 3 cells; at worst 12.5 points, "
        "with 40 % attackers (IPM) at Dirichlet 0.5. The bar is no cell."
    )
    assert safety([]) == "`auto with probe` was not run, or FedAvg without attack was not."


def test_what_a_backdoor_reaches():
    made = [result("DBA", 0.1, 0.5, "auto", 0.9, seed) for seed in (0, 1)]
    for r, reached in zip(made, (0.5, 1.0), strict=True):
        r["result"]["attack_success"] = reached
    found = {row[0]: row[1:] for row in successes(made, "DBA")[1]}
    assert found["auto"][list(product(SHARES, ALPHAS)).index((0.1, 0.5))] == "75.0"
    assert set(found) == {"auto"}  # the others were not run
    assert "(success-dba.csv)" in page(made)


def test_only_the_probed_guard_has_a_probe():
    probes = {(cell["defence"], given["data"]["probe"]) for cell, given in cells([0])}
    assert probes == {(name, 100 if name == PROBED else 0) for name in DEFENCES}


def test_means_over_seeds_are_compared():
    seeds = [
        result("IPM", 0.1, 0.5, d, a, seed)
        for d, both in {"auto": (0.8, 0.9), "Krum": (0.95, 0.77)}.items()
        for seed, a in enumerate(both)
    ]
    assert best_cells(seeds)[0][3] == pytest.approx(0.01)  # 0.85 beside 0.86


def test_the_ranking_by_hand():
    assert rows(ranking(RESULTS)) == [
        # auto: 0.95, 0.9, 0.9, 0.9; FedAvg: 0.955, 0.5, 0.1, 0.96; Krum: 0.7, 0.93, 0.2
        ["FedAvg", "50 %", "62.9", "10.0", "-"],
        ["auto", "50 %", "91.2", "90.0", "-"],
        ["Krum", "33 %", "61.0", "20.0", "-"],
    ]
    strongest = [result("strongest", share, 0.5, "Krum", a) for share, a in ((0.1, 0.8), (0.4, 0.3))]
    assert rows(ranking([*RESULTS, *strongest]))[0] == ["Krum", "60 %", "58.6", "20.0", "30.0"]  # alone in those two
    assert rows(ranking([])) == []


def test_the_table_of_an_attack_by_hand():
    header, body = table(RESULTS, "sign flip")
    places = list(product(SHARES, ALPHAS))
    assert header == ["defence", *(f"{100 * s:.0f} %, Dirichlet {a:g}" for s, a in places)]
    found = {row[0]: row[1:] for row in body}
    assert list(found) == ["FedAvg", "Krum", "auto"]
    column = {place: i for i, place in enumerate(places)}
    for defence, share, alpha, want in [
        ("auto", 0.1, 0.5, "**95.0**"),  # within a point of the best, hence bold
        ("FedAvg", 0.1, 0.5, "**95.5**"),
        ("Krum", 0.1, 0.5, "70.0"),
        ("auto", 0.25, 0.5, "90.0"),
        ("Krum", 0.25, 0.5, "**93.0**"),
        ("auto", 0.4, 100.0, "**90.0**"),
        ("auto", 0.4, 0.5, "-"),
    ]:
        assert found[defence][column[share, alpha]] == want
    assert {row[0]: row[1:] for row in table(RESULTS, "none")[1]}["auto"] == ["-", "90.0"]


def test_detections_by_hand():
    results = [
        result("IPM", 0.1, 0.5, "auto", 0.9, 0, attackers=2, caught=2),
        result("IPM", 0.4, 0.5, "auto", 0.9, 0, attackers=8, caught=4, wronged=1),
        result("IPM", 0.1, 0.5, "PID-MADE", 0.9, 0, attackers=2),
        result("none", 0.0, 0.5, "auto", 0.9, 0),
        result("none", 0.0, 0.5, "auto", 0.9, 1, wronged=3),
        result("IPM", 0.1, 0.5, "Krum", 0.9, 0, attackers=2),
    ]
    assert detections(results)[1] == [
        ["none", "auto", "-", "0.50"],
        ["IPM", "PID-MADE", "0.00", "0.00"],
        ["IPM", "auto", "0.75", "0.50"],
    ]


def test_every_file_that_a_page_links_is_written(tmp_path):
    backdoor = [result("DBA", 0.1, 0.5, "auto", 0.9)]
    written = {path.name for path in write([*RESULTS, *backdoor], tmp_path)}
    linked = set(re.findall(r"\]\(([^)]+)\)", page([*RESULTS, *backdoor])))
    assert linked <= written
    assert {name for name in written - linked if name.endswith(".csv")} == set()


def test_a_picture_per_attack(tmp_path):
    (path,) = draw(RESULTS, tmp_path)
    assert path == tmp_path / "sign-flip.svg"
    text = path.read_text()
    for word in ("sign flip", "auto", "FedAvg", "Krum", "Dirichlet 0.5", "Dirichlet 100", "share of attackers"):
        assert word in text
    assert "median" not in text
    assert draw([], tmp_path) == []
