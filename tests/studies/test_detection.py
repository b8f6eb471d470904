"""The cells of the study on digits, counted by hand, and its tables from made-up results."""

from __future__ import annotations

import json

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.pid_made_items import detection, detection_summary, detection_table


def rows(grid):
    return [list(row) for row in grid[1]]


def test_every_cell_is_a_scenario_of_its_own():
    made = detection([0, 1])
    keys = [json.dumps(cell, sort_keys=True) for cell, _ in made]
    assert len(set(keys)) == len(keys)
    for cell, table in made:
        scenario = load_scenario(table)
        assert scenario.seed == cell["seed"]
        assert scenario.data.clients == cell["clients"]
        assert len(scenario.attackers()) == cell["attackers"]
        assert scenario.guard.preset == cell["preset"]
        for attack in scenario.attacks:
            assert attack.options["fraction"] == cell["poison"]
        scenario.guard.build()
    assert rows(detection_table([])) == rows(detection_summary([])) == []


def test_the_number_of_cells():
    # 5 clients: nobody, 1 or 2 attackers, each of those with 3 poisons; 10, 20 and 40: nobody or one of three numbers
    assert len(detection([0])) == ((1 + 2 * 3) + 3 * (1 + 3 * 3)) * 2 * 2
    found = {(c["clients"], c["attackers"]) for c, _ in detection([0])}
    assert found == {
        *((5, f) for f in (0, 1, 2)), *((10, f) for f in (0, 1, 2, 4)),
        *((20, f) for f in (0, 2, 5, 8)), *((40, f) for f in (0, 4, 10, 16)),
    }  # fmt: skip


def detection_result(seed, attackers, poison, caught, wronged, last, **cell):
    where = {"clients": 10, "partition": "iid", "attackers": attackers, "poison": poison, "preset": "auto", **cell}
    result = {"attackers": attackers, "caught": caught, "wronged": wronged, "last_catch": last}
    return {"cell": {**where, "seed": seed}, "result": result}


RESULTS = [
    detection_result(0, 0, 0.0, 0, 0, None),
    detection_result(1, 0, 0.0, 0, 2, None),
    detection_result(0, 2, 0.1, 0, 0, None),
    detection_result(1, 2, 0.1, 1, 0, 20),
    detection_result(0, 2, 0.5, 2, 0, 8),
    detection_result(0, 2, 1.0, 2, 1, 3),
    detection_result(0, 4, 1.0, 3, 0, 5),
    detection_result(0, 1, 1.0, 1, 0, 2, clients=5),
    detection_result(0, 2, 1.0, 0, 0, None, preset="pid_made"),
]


def test_the_detection_table_by_hand():
    assert rows(detection_table(RESULTS)) == [
        ["iid", "5", "1", "auto", "-", "-", "1.00", "2", "0.00"],
        ["iid", "10", "2", "pid_made", "-", "-", "0.00", "-", "0.00"],
        ["iid", "10", "0", "auto", "-", "-", "-", "-", "0.50"],
        # recall (0/2 + 1/2) / 2, 2/2, 2/2; catches in rounds 20, 8 and 3; one of four runs wrongs somebody
        ["iid", "10", "2", "auto", "0.25", "1.00", "1.00", "8", "0.25"],
        ["iid", "10", "4", "auto", "-", "-", "0.75", "5", "0.00"],
    ]


def test_the_summary_by_hand():
    """Over all numbers of clients; where no run was free of attackers there is no row."""
    assert rows(detection_summary(RESULTS)) == [
        # at full poison 2/2, 3/4 and 1/1; two clean runs, one of them wrong; six attacked ones, one wrong
        ["iid", "auto", "0.25", "1.00", "0.92", "0.500", "0.167"],
    ]
