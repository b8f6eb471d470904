"""Figures 1 and 2 of the paper on divergence, and a hundred clients: numbers by hand, sentences from the tables."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.tables import Sheet
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
