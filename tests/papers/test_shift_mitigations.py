"""Measures against being read, a larger model and an active attacker: what is sent, and what the tables say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.shift_beyond import (
    STRATEGIES,
    Scaled,
    active,
    active_holds,
    active_sheets,
    larger,
    larger_holds,
    larger_sheets,
)
from fedwarden_research.papers.shift_mitigations import (
    MEASURES,
    NORM,
    SHIFT,
    Measured,
    advice,
    cells,
    draw,
    measures,
    recommend,
    table,
)
from fedwarden_research.papers.shifts import FRESH, SETTINGS, STILL, Change

UPDATE = torch.full((400,), 0.5)


def planted(seeds=8):
    """Smoothing hides the shift for two points of accuracy; a gradual change hides nothing for nothing."""
    rng = np.random.default_rng(0)
    found = []
    for kind, value, hides, accuracy in (
        ("none", 0.0, False, 0.9),
        ("smoothing", 0.9, True, 0.88),
        ("gradual change", 3, False, 0.9),
    ):
        for seed in range(seeds):
            result = {}
            for branch in ("no change", "fresh swap", SHIFT):
                moved = 0.0 if hides or branch != SHIFT else 9.0
                keys = {"outputs/mean_logits/": moved, "weights/procrustes/": 0.0}
                departures = {key: size + rng.normal(0, 0.1) for key, size in keys.items()}
                result[branch] = {"departure": departures, "accuracy": accuracy}
            found.append({"cell": {"kind": kind, "value": value, "seed": seed}, "result": result})
    return found


def test_the_client_clips_and_adds_noise_of_its_own():
    sender = measures("noise at the client", 0.1, 2, seed=3).senders["1"]
    sent = sender(5, UPDATE)
    assert torch.equal(sent, sender(5, UPDATE))
    assert not torch.equal(sent, sender(6, UPDATE))
    clipped = UPDATE * NORM / UPDATE.norm()
    assert float((sent - clipped).std()) == pytest.approx(0.1 * NORM, rel=0.15)  # a standard error of 3.5 %


def test_the_server_needs_less_noise_the_more_clients_there_are():
    for n in (2, 10):
        sent = measures("noise at the server", 0.3, n, seed=0).publisher(1, torch.zeros(4000))
        assert float(sent.std()) == pytest.approx(0.3 * NORM / n, rel=0.05)


def test_smoothing_remembers():
    sender = measures("smoothing", 0.75, 2, seed=0).senders["1"]
    assert sender(1, torch.zeros(2)).tolist() == [0.0, 0.0]
    assert sender(2, torch.full((2,), 4.0)).tolist() == [1.0, 1.0]


def test_other_measures_rewrite_nothing():
    for kind in ("none", "gradual change", "more clients"):
        assert not measures(kind, 5, 5, seed=0).senders


def test_cells_hold_every_measure_in_the_scenario_it_needs():
    found = cells([0], "cpu", SETTINGS["digits"])
    assert len(found) == sum(len(values) for values in MEASURES.values())
    for cell, job in found:
        scenario = load_scenario(job["scenario"])
        assert scenario.data.clients == (cell["value"] if cell["kind"] == "more clients" else 2)
        ramps = {a.get("ramp", 0) for attacks in job["branches"].values() for a in attacks}
        assert ramps == {cell["value"] if cell["kind"] == "gradual change" else 0}


def test_tables_and_advice_weigh_leakage_against_accuracy(tmp_path):
    found = planted()
    _, lines = table(found)
    assert lines[0][:4] == ["none", "-", "**1** (1 to 1)", "1.00 (outputs, mean logits)"]
    assert lines[1][-2:] == ["88.0 ± 0.0", "2.0"]
    _, advised = advice(found)
    assert advised[0] == ["0 points", "none (AUROC 1.00)"]
    assert "smoothing, 0.9 kept" in advised[2][1]  # for three points
    pytest.importorskip("matplotlib")
    assert "<svg" in Path(draw(found, tmp_path / "m.svg", "planted")).read_text()


def test_the_recommendation_keeps_to_the_budget():
    found = [Measured("none", 0.99, 0.0), Measured("a", 0.6, 0.03), Measured("b", 0.6, 0.02), Measured("c", 0.2, 0.0)]
    assert recommend(found, 0.05).name == "b"
    assert recommend(found, 0.01).name == "c"  # below one half shows too, but less than 0.99
    assert recommend(found[1:3], 0.0) is None


def played(moved, seed, strategy="passive", n=2):
    """A run in which the weights leave their trend by ``moved`` in each branch, and by a little of the seed."""
    branches = {}
    for change in (Change(STILL), Change(FRESH), Change("fresh", 0.6)):
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
