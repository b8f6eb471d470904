"""The studies of the choices inside the watch: their cells, and their tables by hand."""

from __future__ import annotations

import numpy as np

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.divergence import CORRUPTIONS
from fedwarden_research.papers.divergence_items import (
    CHOICES,
    HARMS,
    KINDS,
    POLICIES,
    choices,
    choices_table,
    weights,
    weights_table,
)


def rows(grid):
    return [list(row) for row in grid[1]]


def test_the_cells_are_scenarios():
    made = choices([0, 1])
    assert len(made) == (1 + len(CORRUPTIONS)) * len(KINDS) * 2
    for cell, table in made:
        scenario = load_scenario(table)
        guard = scenario.guard.build()
        assert scenario.data.probe_from.name == cell["kind"]
        assert [w.name for w in guard.watches] == (list(CHOICES) if cell["kind"] == "reserve" else ["divergence"])
    for cell, table in weights([0]):
        scenario = load_scenario(table)
        assert (
            scenario.guard.build().policy == load_scenario({"guard": {"policy": cell["policy"]}}).guard.build().policy
        )
        assert set(scenario.attackers()) == (set() if cell["harm"] == "nobody" else {0, 1})


def test_the_choices_by_hand():
    def result(names, first):
        scores = [[9.0, 1.0] if t < first else [1.0, 2.0] for t in range(6)]
        return {name: {"score": scores, "signal": scores, "flagged": [[1, 0]] * 6} for name in names}

    found = [
        {
            "cell": {"corruption": c, "kind": k, "seed": 0},
            "result": result(CHOICES if k == "reserve" else ["divergence"], 4),
        }
        for c in ("none", *CORRUPTIONS)
        for k in KINDS
    ]
    table = rows(choices_table(found))
    assert len(table) == len(CHOICES) + len(KINDS)
    # of the last four of six rounds the first two: half, and a z of (9 + 9 + 1 + 1) / 4
    assert all(row[1:] == [*[".500, z 5.0"] * len(CORRUPTIONS), "0.500"] for row in table)


def test_the_weights_by_hand():
    def result(policy):
        level = {"observe": 0.5, "down_weight": 0.7, "exclude": 0.8}[policy]
        return {"accuracy": [0.1] + [level] * 5, "weights": [0.2] * 5 + [0.0 if policy == "exclude" else 0.2]}

    found = [
        {"cell": {"harm": h, "alpha": a, "policy": p, "seed": 0}, "result": result(p)}
        for h in HARMS
        for a in (1.0, 0.1)
        for p in POLICIES
    ]
    assert rows(weights_table(found))[0] == [
        "1",
        "nobody",
        "50.0",
        "70.0",
        "80.0",
        "0.20",
        f"{np.mean([0.2] * 5 + [0]):.2f}",
    ]
    assert rows(weights_table(found[:2])) == []
