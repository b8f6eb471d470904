"""Audits: cells whose nulls match their shifts."""

from __future__ import annotations

import json

import pytest

from fedwarden.core.config import parse
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import AttackConfig, load_scenario
from fedwarden_research.papers.shifts import SETTINGS, Change, branches, centralised, federated, many, run, scalability


@pytest.mark.parametrize("even", [0.55, 0.7, 1.0])
def test_a_partial_swap_exchanges_as_many_samples_as_the_shift(even):
    setting = SETTINGS["digits"]
    counts = []
    made = branches(setting.start, [1], [even])
    for change in [c for c in made if c.kind in ("partial", "partial swap")]:
        scenario = load_scenario({**setting.scenario(2, 1, 0), "attacks": made[change]})
        world = build_world(scenario)
        before, after = world.rows["1"], world.changed(setting.start)["1"]
        counts.append(int((world.x[before] != world.x[after]).flatten(1).any(dim=1).sum()))
        odd = world.y[after].numpy() % 2
        assert 1 - odd.mean() == pytest.approx(0.5 if change.kind == "partial swap" else even, abs=0.002)
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
    setting = SETTINGS["mnist-own"]
    jobs = many([0, 1], "cpu", setting)
    assert [tuple(cell.values()) for cell, _ in jobs] == [(10, 3, 0), (10, 3, 1), (5, 1, 0), (5, 1, 1)]
    tried = [0.55, 0.6, 0.7, 0.8, 0.9, 1.0]
    coarse = {tuple(cell.values()): job for cell, job in scalability([0, 1], "cpu", setting)}
    for cell, job in jobs:
        assert [c.even for c in job["branches"] if c.kind == "fresh"] == tried
        twin = coarse[tuple(cell.values())]
        assert (job["scenario"], job["observing"], job["start"]) == (twin["scenario"], twin["observing"], twin["start"])
        assert twin["branches"].items() <= job["branches"].items()


def test_the_settings_that_the_paper_states():
    census = SETTINGS["census"]
    for cell, job in [*centralised([0], "cpu", SETTINGS["mnist"]), *scalability([0], "cpu", SETTINGS["mnist"])]:
        train, alone = job["scenario"]["train"], cell["n"] == 1
        assert (job["scenario"]["rounds"], job["start"]) == (20, 11)  # r, s
        assert train["epochs"] == (1 if alone else 2)  # single epochs in one place, l = 2 in a federation
        assert [c.even for c in job["branches"] if c.even] == [0.8 if alone else 0.7]
        assert job["observing"].held == "test"
    assert [cell["n"] for cell, job in scalability([0], "cpu", census) if Change("fresh", 0.6) in job["branches"]] == [
        10, 5, 3, 2,
    ]  # fmt: skip
    (_, job), *_ = scalability([0], "cpu", census)
    assert job["scenario"]["data"]["partition"] == {"name": "parity", "size": 800, "even": 0.76}


def test_a_partial_swap_of_unbalanced_classes_exchanges_as_many_as_the_shift():
    made = branches(51, [1], [0.6], base=0.76)
    (shift,), (swap,) = (made[Change(kind, 0.6)] for kind in ("partial", "partial swap"))
    odds = 0.76 / 0.24 * 0.6 / 0.4
    assert shift["even"] == pytest.approx(odds / (1 + odds))
    assert (swap["even"], swap["exchange"]) == (0.76, pytest.approx(odds / (1 + odds) - 0.76))


def test_a_cell_gives_plain_numbers():
    (_, job), *_ = federated([0], "cpu", SETTINGS["digits"], severities=(0.9,))
    job = {**job, "scenario": {**job["scenario"], "rounds": 4}, "start": 4, "branches": branches(4, [1], [0.9])}
    found = json.loads(json.dumps(run(job)))
    assert list(found["branches"]) == ["no change", "fresh swap", "fresh 90-10", "partial 90-10", "partial swap 90-10"]
    assert [(b["kind"], b["even"]) for b in found["branches"].values()][1:3] == [("fresh swap", None), ("fresh", 0.9)]
    cosines = found["before"]["readings"]["weights/cosine/"]
    assert [r[0] for r in cosines] == [2, 3]
    assert all(r[1] != round(r[1], 6) for r in cosines)  # what tells rounds apart lies behind the sixth digit
    assert all(len(x) == 1 and x[0][0] == 4 for x in found["branches"]["fresh swap"]["readings"].values())
