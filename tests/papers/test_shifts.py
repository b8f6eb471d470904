"""Audits: cells whose nulls match their shifts."""

from __future__ import annotations

import json

import pytest

from fedwarden.core.config import parse
from fedwarden.papers.shifts import SETTINGS, branches, centralised, federated, many, run, scalability
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import AttackConfig, load_scenario


@pytest.mark.parametrize("even", [0.55, 0.7, 1.0])
def test_a_partial_swap_exchanges_as_many_samples_as_the_shift(even):
    setting = SETTINGS["digits"]
    counts = []
    made = branches(setting.start, [1], [even])
    for name in [n for n in made if n.startswith("partial")]:
        scenario = load_scenario({**setting.scenario(2, 1, 0), "attacks": made[name]})
        world = build_world(scenario)
        before, after = world.rows["1"], world.changed(setting.start)["1"]
        counts.append(int((world.x[before] != world.x[after]).flatten(1).any(dim=1).sum()))
        odd = world.y[after].numpy() % 2
        assert 1 - odd.mean() == pytest.approx(0.5 if "swap" in name else even, abs=0.002)
    assert counts[0] == counts[1] == round((even - 0.5) * 300)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_describes_scenarios_and_changes(name):
    setting = SETTINGS[name]
    jobs = [*centralised([0], "cpu", setting), *federated([0], "cpu", setting), *scalability([0, 1], "cpu", setting)]
    assert len(jobs) == 1 + 1 + 4 * 2
    for cell, job in jobs:
        scenario = load_scenario(job["scenario"])
        assert scenario.data.clients == cell["n"]
        assert job["start"] <= scenario.rounds
        for attacks in job["branches"].values():
            assert all(parse(AttackConfig, a).start == setting.start for a in attacks)
            assert all(len(a["clients"]) == cell["m"] and 0 not in a["clients"][: cell["n"] > 1] for a in attacks)


def test_many_tries_every_severity_in_the_larger_federations_from_the_rounds_that_scalability_plays():
    setting = SETTINGS["mnist"]
    jobs = many([0, 1], "cpu", setting)
    assert [tuple(cell.values()) for cell, _ in jobs] == [(10, 3, 0), (10, 3, 1), (5, 1, 0), (5, 1, 1)]
    tried = ["55-45", "60-40", "70-30", "80-20", "90-10", "100-0"]
    coarse = {tuple(cell.values()): job for cell, job in scalability([0, 1], "cpu", setting)}
    for cell, job in jobs:
        assert [b.split()[1] for b in job["branches"] if b.startswith("fresh ") and b != "fresh swap"] == tried
        twin = coarse[tuple(cell.values())]
        assert (job["scenario"], job["observing"], job["start"]) == (twin["scenario"], twin["observing"], twin["start"])
        assert twin["branches"].items() <= job["branches"].items()


def test_a_cell_gives_plain_numbers():
    (_, job), *_ = federated([0], "cpu", SETTINGS["digits"], severities=(0.9,))
    job = {**job, "scenario": {**job["scenario"], "rounds": 4}, "start": 4, "branches": branches(4, [1], [0.9])}
    found = json.loads(json.dumps(run(job)))
    assert list(found["branches"]) == ["no change", "fresh swap", "fresh 90-10", "partial 90-10", "partial swap 90-10"]
    cosines = found["before"]["readings"]["weights/cosine/"]
    assert [r[0] for r in cosines] == [2, 3]
    assert all(r[1] != round(r[1], 6) for r in cosines)  # what tells rounds apart lies behind the sixth digit
    assert all(len(x) == 1 and x[0][0] == 4 for x in found["branches"]["fresh swap"]["readings"].values())
