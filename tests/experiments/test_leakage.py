"""Audits: cells whose nulls match their shifts, and tables that tell what was planted."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedwarden.core.config import parse
from fedwarden.experiments.audit import SETTINGS, branches, centralised, federated, many, run, scalability
from fedwarden.experiments.audits import AUDITS
from fedwarden.experiments.leakage import (
    clients_table,
    departure,
    fresh_table,
    layer_table,
    partial_table,
    scores,
    sight_table,
    smallest_clients,
)
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import AttackConfig, load_scenario

NAMES = list(branches(11, [1], [0.7, 0.9]))


def planted(seeds=12, layer=""):
    """Weights that move with any new sample, answers that move with the shift, and a metric that sees nothing."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(seeds):
        kept = {}
        for branch in NAMES:
            new, shifted = float(branch != "no change"), float("-" in branch and "swap" not in branch)
            moved = {"weights/cosine/" + layer: new, "weights/cmd/" + layer: 0.0, "outputs/mean_logits/": shifted}
            readings = {
                k: [[11, 1.0 + 5 * m + rng.normal(0, 0.1), 1.0, 9 * m + rng.normal(), 0.1, m]] for k, m in moved.items()
            }
            kept[branch] = {"readings": readings, "accuracy": {"11": 0.9}}
        before = {"readings": {k: [[10, 1.0, 1.0, 0.0, 0.5, 0.0]] for k in moved}, "accuracy": {}}
        found.append({"cell": {"n": 2, "m": 1, "seed": seed}, "result": {"before": before, "branches": kept}})
    return found


def rows(grid):
    return {line[0]: line[1:] for line in grid[1]}


def test_departures_are_relative_but_for_answers_by_class():
    assert departure("weights/cosine/", [11, 0.25, 0.5, -9.0, 0.01, 1.0]) == 0.5
    assert departure("outputs/mean_logits/", [11, 0.25, 0.5, 9.0, 0.01, 1.0]) == 9.0
    assert np.isnan(departure("weights/cosine/", [11, 0.25, 0.0, -9.0, 0.01, 1.0]))


def test_tables_tell_who_sees_the_shift_and_who_only_sees_new_samples():
    found = planted()
    assert rows(sight_table(found)) == {
        "weights, cosine": ["new samples"] * 2,
        "weights, cmd": ["nothing"] * 2,
        "outputs, mean logits": ["the shift"] * 2,
    }
    fresh = rows(fresh_table(found))
    assert fresh["outputs, mean logits"] == ["**1** (1 to 1)"] * 3 + ["70-30"]
    assert fresh["weights, cosine"][0] == "**1** (1 to 1)"
    assert fresh["weights, cosine"][-1] == "-"
    assert rows(partial_table(found))["outputs, mean logits"] == ["**1** (1 to 1)"] * 3


def test_every_number_of_clients_has_its_columns():
    more = [{**r, "cell": {"n": 10, "m": 3, "seed": r["cell"]["seed"]}} for r in planted()]
    grid = clients_table([*planted(), *more], "partial")
    assert grid[0][1:3] == ["1 of 2 clients, 70-30", "1 of 2 clients, 90-10"]
    assert rows(grid)["outputs, mean logits"] == ["**1** (1 to 1)"] * 4


def test_the_smallest_shift_is_looked_for_in_each_number_of_clients_by_itself():
    more = [{**r, "cell": {"n": 10, "m": 3, "seed": r["cell"]["seed"]}} for r in planted()]
    for r in more:  # among ten clients, 70-30 moves the answers as a fresh swap does
        made = r["result"]["branches"]
        made["fresh 70-30"] = made["fresh swap"]
    (sheet,) = smallest_clients([*more, *planted()])
    assert sheet.title == "Smallest shift detected at 5 % false alarms, all samples exchanged"
    assert sheet.grid[0] == ["source", "1 of 2 clients", "3 of 10 clients"]
    assert rows(sheet.grid)["outputs, mean logits"] == ["70-30", "90-10"]
    assert rows(sheet.grid)["weights, cmd"] == ["-", "-"]


def test_scores_come_in_the_order_of_the_seeds():
    found = planted(4)
    assert (
        scores(found, "fresh swap", "weights/cosine/").tolist()
        == scores(found[::-1], "fresh swap", "weights/cosine/").tolist()
    )


def test_layers_have_rows_of_their_own():
    _, found = layer_table(planted(layer="0.bias"))
    assert found[0][:4] == ["weights", "cosine", "0.bias", "**1** (1 to 1)"]


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


def test_every_audit_has_tables_and_runs_of_a_known_name():
    assert all(audit.tables and audit.runs for audit in AUDITS.values())


@pytest.mark.parametrize("name", [n for n in AUDITS if n != "audit-mitigations"])
def test_the_tables_of_an_audit_have_files_of_their_own(name):
    found = [*planted(), *({**r, "cell": {"n": 10, "m": 3, "seed": r["cell"]["seed"]}} for r in planted())]
    sheets = [sheet for table in AUDITS[name].tables for sheet in table(found)]
    assert len({sheet.name for sheet in sheets}) == len(sheets)
    assert all(len(row) == len(sheet.grid[0]) for sheet in sheets for row in sheet.grid[1])
