"""The cells of the authors' settings, counted by hand, and their table from made-up results."""

from __future__ import annotations

import json

from fedwarden.papers.pid_made import PUBLISHED, published, published_table
from fedwarden.sim.scenario import load_scenario


def rows(grid):
    return [list(row) for row in grid[1]]


def test_every_cell_is_a_scenario_of_its_own():
    made = published([0, 1])
    keys = [json.dumps(cell, sort_keys=True) for cell, _ in made]
    assert len(set(keys)) == len(keys)
    for cell, table in made:
        scenario = load_scenario(table)
        assert scenario.seed == cell["seed"]
        assert scenario.data.clients == cell["clients"]
        assert len(scenario.attackers()) == cell["attackers"]
        assert scenario.guard.preset == cell["preset"]
        for attack in scenario.attacks:
            assert attack.options["fraction"] == cell["fraction"]
        scenario.guard.build()
    assert rows(published_table([])) == []


def test_the_number_of_cells():
    assert len(published([0, 1])) == len(PUBLISHED) * 3 * 2


def test_the_device_goes_into_the_published_cells():
    assert {t["train"]["device"] for _, t in published([0], "cuda")} == {"cuda"}


def published_result(seed, caught, wronged, last, accuracy, own, **cell):
    where = {"data": "femnist_digits", "clients": 20, "attackers": 2, "fraction": 0.5, "preset": "auto", **cell}
    result = {
        "caught": caught, "wronged": wronged, "last_catch": last, "accuracy": accuracy, "clients_accuracy": own,
    }  # fmt: skip
    return {"cell": {**where, "seed": seed}, "result": result}


def test_the_published_table_by_hand():
    results = [
        published_result(0, 2, 0, 4, 0.9, 0.5),
        published_result(1, 1, 0, 7, 1.0, 0.5),
        published_result(2, 2, 3, 5, 0.95, 0.5),
        published_result(0, 0, 1, None, 0.8, 0.8, attackers=0, fraction=1.0, preset="pid_made"),
    ]
    assert rows(published_table(results)) == [
        ["femnist_digits", "0 of 20", "-", "pid_made", "0 of 0", "1 of 20", "-", ".800", ".800"],
        [
            "femnist_digits", "2 of 20", "50 %", "auto", "1 to 2 of 2 (mean 1.7)", "0 to 3 of 18 (mean 1.0)", "5",
            ".950 ± .050", ".500 ± .000",
        ],
    ]  # fmt: skip
