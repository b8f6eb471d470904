"""A larger model and an active attacker: what is sent, and what the tables say."""

from __future__ import annotations

import numpy as np
import torch

from fedwarden_research.papers.shift_beyond import (
    SHIFT,
    STRATEGIES,
    Scaled,
    active,
    active_holds,
    active_sheets,
    larger,
    larger_holds,
    larger_sheets,
)
from fedwarden_research.papers.shifts import FRESH, SETTINGS, STILL, Change


def played(moved, seed, strategy="passive", n=2):
    """A run in which the weights leave their trend by ``moved`` in each branch, and by a little of the seed."""
    branches = {}
    for change in (Change(STILL), Change(FRESH), SHIFT):
        value = 1.0 + moved[change.kind] + 1e-3 * seed
        rows = {"weights/cosine/": [[11, value, 1.0, 0.0, 0.1, 0.0]]}
        branches[str(change)] = {"kind": change.kind, "even": change.even, "readings": rows, "accuracy": {"11": 0.5}}
    cell = {"n": n, "m": 1, "seed": seed, "strategy": strategy}
    return {"cell": cell, "result": {"before": {"readings": {}, "accuracy": {}}, "branches": branches}}


def test_what_an_active_attacker_sends():
    update = torch.tensor([1.0, -2.0])
    assert Scaled(-0.5)(3, update).tolist() == [-0.5, 1.0]
    jobs = active([0, 1], "cpu", SETTINGS["digits"])
    assert len(jobs) == 2 * len(STRATEGIES)
    assert {job["factor"] for _, job in jobs} == set(STRATEGIES.values())


def test_who_tells_the_shift_is_counted_for_each_strategy():
    blind, seeing = {STILL: 0.0, FRESH: 0.3, "fresh": 0.3}, {STILL: 0.0, FRESH: 0.3, "fresh": 0.9}
    found = [
        played(moved, seed, strategy)
        for strategy, moved in (("passive", blind), ("reversed", seeing))
        for seed in range(4)
    ]
    made = {sheet.name: sheet for sheet in active_sheets(found)}
    rows = made["strategies"].records()
    assert [(r["sources that tell"], r["its AUROC"]) for r in rows] == [("0 of 1", "0.5"), ("1 of 1", "1")]
    said = "passive 0 of 1 (accuracy 0.50), reversed 1 of 1 (accuracy 0.50); about 0 would by chance. With 4 seeds"
    assert said in active_holds(made)


def test_a_larger_model_is_told_as_the_others_are():
    found = [played({STILL: 0.0, FRESH: 0.3, "fresh": 0.9}, seed) for seed in range(3)]
    made = {sheet.name: sheet for sheet in larger_sheets(found)}
    assert np.isclose(float(made["departures"].records()[0]["shift"]), 0.901)
    assert larger_holds(made).startswith(
        "At 60-40 1 of 1 sources tell the shift from no change, and 1 from an unshifted"
    )
    ((_, job),) = larger([0], "cuda", SETTINGS["cifar10"])
    assert job["scenario"]["model"] == "resnet18"
    assert [c.even for c in job["branches"] if c.even] == [0.7, 0.9]
