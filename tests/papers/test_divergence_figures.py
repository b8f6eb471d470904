"""Figures 1 and 2 of the paper on divergence, a hundred clients, and the choices inside the watch, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.divergence import ALPHAS, CLIENTS, CORRUPTIONS
from fedwarden_research.papers.divergence_figures import (
    MANY,
    SHIFTED,
    crowd,
    crowd_holds,
    crowd_table,
    heterogeneity_holds,
    heterogeneity_sheets,
    standing_out,
    standing_out_holds,
)
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
from fedwarden_research.studies.tables import Sheet

ROUNDS = 9


def watched(cell, level, first=1.0, z=0.0):
    """Every client at a level, the first rounds at another; client 0 by ``z`` above the others."""
    signal = [[first] * CLIENTS] * 3 + [[level] * (CLIENTS - 1) + [2 * level]] * (ROUNDS - 3)
    score = [[z, *([0.0] * (CLIENTS - 2)), 1.0]] * ROUNDS
    flagged = [[int(z > 6), *([0] * (CLIENTS - 1))]] * ROUNDS
    seen = {"signal": signal, "score": score, "flagged": flagged}
    return {"cell": cell, "result": {"accuracy": [0.5], "divergence": seen}}


def calm(levels):
    return [
        watched({"data": "fashion_mnist", "corruption": "none", "alpha": a, "seed": s}, level + 0.001 * s)
        for a, level in zip(ALPHAS, levels, strict=True)
        for s in range(3)
    ]


def tables(sheets):
    return {sheet.name: sheet for sheet in sheets}


def test_divergence_that_rises_with_heterogeneity():
    made = tables(heterogeneity_sheets(calm([0.1, 0.2, 0.4])))
    row = made["levels"].records()[-1]
    assert float(row["late rounds"]) == pytest.approx(1.1 * 0.401, rel=1e-3)  # nine clients at a level, one at twice it
    assert (row["farthest over median"], row["one client farthest"]) == ("1", "1")
    assert [r["p"] for r in made["order"].records()] == ["0.05"] * 3  # 1 / (6 choose 3)
    assert heterogeneity_holds(made).startswith("The claim holds: the first rounds lie above the late ones at 3 of 3")
    level = tables(heterogeneity_sheets(calm([0.2, 0.2, 0.4])))
    assert "rises in 2 of 3 steps" in heterogeneity_holds(level)


def test_a_corrupted_client_stands_out_where_it_ranks_first():
    heights = dict(zip(CORRUPTIONS, (0.5, 9.0, 9.0, 9.0), strict=True))
    found = [
        watched({"data": "cifar10", "corruption": c, "alpha": 1.0, "seed": s}, 1.0, z=z)
        for c, z in heights.items()
        for s in range(2)
    ]
    made = {"divergence": Sheet("divergence", "", standing_out(found))}
    row = made["divergence"].records()[1]
    assert (row["z"], row["z of the others"], row["ranks first"], row["AUROC"]) == ("9", "0.1111", "1", "1")
    assert (row["flagged"], row["others flagged"]) == ("1", "0")
    assert standing_out_holds(made).startswith("on cifar10 the claim holds in part (2 seeds)")
    assert "in fewer with noise (0.00)." in standing_out_holds(made)


def test_a_hundred_clients_of_whom_ten_take_part():
    for cell, table in crowd([0], "cpu"):
        scenario = load_scenario(table)
        assert (scenario.data.clients, scenario.train.participation) == (MANY, 0.1)
        assert sum(len(m) for m in scenario.members()) == (0 if cell["corruption"] == "none" else SHIFTED)


def test_corrupted_clients_are_known_by_who_took_part():
    rng = np.random.default_rng(0)
    clients = [rng.permutation(MANY)[:10].tolist() for _ in range(30)]
    score = [[5.0 if c < SHIFTED else float(c) / MANY for c in row] for row in clients]
    seen = {"score": score, "flagged": [[int(v == 5.0) for v in row] for row in score]}
    found = [
        {"cell": {"corruption": c, "seed": 0}, "result": {"accuracy": [0.5], "clients": clients, "divergence": seen}}
        for c in ("none", "blur")
    ]
    made = {"crowd": Sheet("crowd", "", crowd_table(found, ["divergence"]))}
    quiet, blurred = made["crowd"].records()
    assert (quiet["AUROC"], blurred["AUROC"], blurred["flagged"], blurred["others flagged"]) == ("", "1", "1", "0")
    assert crowd_holds(made).endswith("divergence 1.00 to 1.00.")


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
