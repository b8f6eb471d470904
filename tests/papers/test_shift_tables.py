"""Audits: tables that tell what was planted."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden_research.papers.shift_audits import AUDITS, smallest
from fedwarden_research.papers.shift_tables import (
    clients_table,
    departure,
    fresh_table,
    layer_table,
    partial_table,
    scores,
    severities,
    sight_table,
    smallest_detected,
)
from fedwarden_research.papers.shifts import STILL, all_changes

CHANGES = all_changes([0.7, 0.9])


def planted(seeds=12, layer=""):
    """Weights that move with any new sample, answers that move with the shift, and a metric that sees nothing."""
    rng = np.random.default_rng(0)
    found = []
    for seed in range(seeds):
        kept = {}
        for change in CHANGES:
            new, shifted = float(change.kind != STILL), float(change.kind in ("fresh", "partial"))
            moved = {"weights/cosine/" + layer: new, "weights/cmd/" + layer: 0.0, "outputs/mean_logits/": shifted}
            readings = {
                k: [[11, 1.0 + 5 * m + rng.normal(0, 0.1), 1.0, 9 * m + rng.normal(), 0.1, m]] for k, m in moved.items()
            }
            kept[str(change)] = {
                "kind": change.kind,
                "even": change.even,
                "readings": readings,
                "accuracy": {"11": 0.9},
            }
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
    (sheet,) = smallest([*more, *planted()])
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


def test_every_audit_has_tables_and_runs_of_a_known_name():
    assert all(audit.tables and audit.runs for audit in AUDITS.values())


@pytest.mark.parametrize("name", [n for n in AUDITS if n != "audit-mitigations"])
def test_the_tables_of_an_audit_have_files_of_their_own(name):
    found = [*planted(), *({**r, "cell": {"n": 10, "m": 3, "seed": r["cell"]["seed"]}} for r in planted())]
    sheets = [sheet for table in AUDITS[name].tables for sheet in table(found)]
    assert len({sheet.name for sheet in sheets}) == len(sheets)
    assert all(len(row) == len(sheet.grid[0]) for sheet in sheets for row in sheet.grid[1])


def test_severities_are_kept_as_numbers():
    found = planted(1)
    (kept,) = [r["result"]["branches"] for r in found]
    assert severities(found) == [0.7, 0.9]
    kept["anything"] = {"kind": "fresh", "even": 0.625, "readings": {}, "accuracy": {}}
    assert severities(found) == [0.7, 0.9, 0.625]


def test_the_smallest_shift_is_one_from_which_on_all_are_found():
    null = np.arange(10.0)
    found, missed = np.full(10, 99.0), np.zeros(10)
    table = {0.55: found, 0.6: missed, 0.7: found, 0.9: found}
    assert smallest_detected(table, null) == 0.7  # the lucky find at 0.55 does not count
    assert smallest_detected({0.9: missed}, null) is None
    mostly = np.r_[found[:7], missed[:3]]
    assert smallest_detected({0.9: mostly}, null) is None
    assert smallest_detected({0.9: mostly}, null, power=0.7) == 0.9
