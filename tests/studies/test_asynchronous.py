"""The study of asynchronous federations: its cells, and its tables by hand."""

import numpy as np
import pytest

from fedwarden.core.types import RoundRecord
from fedwarden.sim.scenario import load_scenario
from fedwarden_research.studies import asynchronous
from fedwarden_research.studies.asynchronous import BUFFERS, HONEST, NO_ATTACK, PLAIN, cost, grids, headline, tally
from fedwarden_research.studies.plan import Asked

ALIKE = "auto, alike"


def made(accuracy, seeds=range(2), attacks=(NO_ATTACK, "label flip")):
    """Results of every cell; ``accuracy`` is by attack and guard, minus a thousandth of the buffer."""
    cells = asynchronous.cells("digits", seeds, attacks, (PLAIN, ALIKE))
    return [
        {
            "cell": cell,
            "result": {
                "accuracy": accuracy[cell["attack"], cell["defence"]] - cell["buffer"] / 1000 + cell["seed"] / 100,
                "outs": [3, 5, 8, 9] if cell["attack"] != NO_ATTACK else [],
                "doubts": [3, 3, 3, 3] if cell["attack"] != NO_ATTACK else [],
                "held": 0.04,
                "honest": 16 if cell["attack"] != NO_ATTACK else 20,
                "honest doubted": 2,
                "honest out": 1,
            },
        }
        for cell, _ in cells
    ]


ACCURACY = {
    (NO_ATTACK, PLAIN): 0.9, (NO_ATTACK, ALIKE): 0.89, ("label flip", PLAIN): 0.5, ("label flip", ALIKE): 0.88
}  # fmt: skip


def test_every_cell_is_a_scenario_and_runs_without_attack_have_more_seeds():
    plan = asynchronous.plan(Asked(seeds=2))
    for _, table in plan.cells[:: len(plan.cells) // 20]:
        load_scenario(table)
    alone = {cell["seed"] for cell, _ in plan.cells if cell["attack"] == NO_ATTACK}
    under = {cell["seed"] for cell, _ in plan.cells if cell["attack"] != NO_ATTACK}
    assert (len(alone), len(under)) == (HONEST, 2)
    one = asynchronous.plan(Asked(seeds=2, attack=["scaling"])).cells
    assert len(one) == 2 * 2 * 3 * len(BUFFERS)  # with and without attack, three guards


def test_costs_compare_the_seeds_that_both_have():
    results = made(ACCURACY, range(2), ("label flip",)) + made(ACCURACY, range(5), (NO_ATTACK,))
    assert cost(results, 4, "label flip", ALIKE) == pytest.approx(2.0)
    assert cost(results, 4, NO_ATTACK, ALIKE) == pytest.approx(1.0)
    assert cost(results, 4, "scaling", ALIKE) is None


def test_tables_and_headline_by_hand():
    results = made(ACCURACY)
    attacked, alone = grids("digits", results).values()
    assert dict(zip(*(attacked[0], attacked[1][1]), strict=True)) == {
        "data": "digits",
        "buffer": "1",
        "attack": "label flip",
        "guard": ALIKE,
        "runs": "2",
        "accuracy": attacked[1][1][5],
        "points below no attack": "2.0",
        "attackers in doubt by reply 8": "8 of 8",
        "attackers left out by reply 8": "6 of 8",
        "weight of the attackers": "0.040",
        "honest clients ever in doubt": "4 of 32",
        "honest clients ever left out": "2 of 32",
    }
    assert len(alone[1]) == 2 * len(BUFFERS)
    assert all(len(row) == len(header) for header, rows in (attacked, alone) for row in rows)
    text = headline(results)
    assert "no attack: 6 of 120 honest clients left out in 6 runs (bar: 0); at most 1.0 points below FedBuff" in text
    assert "label flip: at most 2.0 points lost (bar: 1.5); 18 of 24 attackers left out by reply 8" in text


def record(t, weights, flagged=(), excluded=()):
    ids = tuple(weights)
    return RoundRecord(
        round=t,
        client_ids=ids,
        num_examples=np.ones(len(ids)),
        weights=np.array([*weights.values()], dtype=float),
        watches=(),
        flagged=np.array([c in flagged for c in ids]),
        excluded=excluded,
        rejected=(),
        notes=(),
        metrics={},
    )


def test_replies_are_counted_for_each_client():
    records = [
        record(1, {"0": 1.0, "5": 1.0}),
        record(2, {"0": 1.0}, flagged=("0",)),
        record(3, {"0": 0.0, "6": 1.0}, flagged=("0",)),
        record(4, {"5": 0.0}),
    ]
    found = tally(records, {"0"})
    assert (found["doubts"], found["outs"]) == ([2], [3])
    assert (found["honest"], found["honest doubted"], found["honest out"]) == (2, 0, 1)
    assert found["held"] == pytest.approx(2 / 4)
