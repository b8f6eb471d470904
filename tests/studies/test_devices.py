"""The study of many clients that are each seen a few times: its cells, a tiny run, and its tables by hand."""

import numpy as np
import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.studies.devices import (
    ATTACKS,
    CLIP,
    FRESH,
    GUARD,
    NONE,
    PLAIN,
    Case,
    Devices,
    cases,
    cells,
    filled,
    headline,
    rows,
)


def made(**changed):
    """Results of every cell; ``changed`` are accuracies by guard."""
    accuracy = {PLAIN: 0.9, CLIP: 0.88, GUARD: 0.89} | changed
    kept = {"left_out": 0.01, "excluded": 0, "longest": 1.2, "filled": 1, "longest_filled": 1.1}
    wanted = cells([0, 1], cases(), 3, 3400, tuple(accuracy))
    return [{"cell": c, "result": {**kept, "late_accuracy": accuracy[c["defence"]]}} for c, _ in wanted]


def test_every_cell_is_a_scenario_and_attackers_are_the_share_that_it_names():
    wanted = cells([0], cases(), 3, 3400, (PLAIN, CLIP, GUARD))
    assert len(wanted) == 5 + 2 * 3 * len(ATTACKS)
    for cell, table in wanted:
        scenario = load_scenario(table["scenario"])
        assert round(scenario.train.participation * 3400) == int(cell["setting"].split()[0])
        if "%" in cell["setting"]:
            assert f"{100 * len(scenario.attackers()) / 3400:g} %" in cell["setting"]


def test_the_chance_of_a_round_that_attackers_fill_is_that_of_draws():
    rng = np.random.default_rng(0)
    drawn = rng.hypergeometric(90, 210, 10, size=200_000)
    assert filled(300, 90, 10) == pytest.approx((drawn >= 5).mean(), abs=0.004)


def test_clients_under_new_names_are_let_in():
    """On the digits, which are at hand everywhere."""
    (_, table), *_ = cells([0], [Case(10, FRESH)], 3, 60, (GUARD,))
    data = {**table["scenario"]["data"], "dataset": "digits"}
    federation = Devices({**table, "scenario": {**table["scenario"], "data": data}})
    records = list(federation.play())
    assert records[2].client_ids[0].endswith(", 3")
    assert all(not r.rejected and (r.weights > 0).all() for r in records)


def test_the_headline_names_the_worst_case_and_how_far_it_lies_below():
    text = headline(made(**{GUARD: 0.874}))
    assert "10 asked, no attack: 2.60 points below FedAvg" in text
    assert "1.00 % of honest replies left out" in text
    assert "50 asked, 20 % attackers: at most 2.60 points below FedAvg without attack (bar: 5)" in text
    assert "at most 0.60 below norm clipping" in text
    found = next(r for r in rows(made()) if r[:3] == ["10 asked", NONE, GUARD])
    assert found[3] == "2"
    assert found[5] == "1.00"
