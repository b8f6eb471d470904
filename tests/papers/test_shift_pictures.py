"""Pictures of the audits: what stands in which panel, over what, and beside which null."""

from __future__ import annotations

import pytest

from fedwarden_research.papers import shift_pictures
from fedwarden_research.papers.shift_pictures import (
    CERTAINTY,
    CLIENTS,
    LAYERS,
    ROUNDS,
    SEVERITIES,
    SIZES,
    certainty,
    extent,
    over_clients,
    over_layers,
    over_rounds,
    over_severities,
    over_sizes,
)
from fedwarden_research.papers.shifts import all_changes

MOVES = {"no change": 0.0, "fresh swap": 1.0, "fresh 70-30": 2.0, "fresh 90-10": 3.0, "partial swap 90-10": 0.5}


def planted(n=2, m=1, seeds=(0, 1, 2), keys=("weights/cosine/", "outputs/mean_logits/")):
    """Departures by hand: a seed adds a hundredth of itself; before the change every value is 0.75."""
    found = []
    for seed in seeds:
        kept = {}
        for change in all_changes([0.7, 0.9]):
            move = MOVES.get(str(change), 0.25) + seed / 100
            readings = {key: [[11, 0.5 * (1 + move), 0.5, move, 0.1, 0.0]] for key in keys}
            kept[str(change)] = {"kind": change.kind, "even": change.even, "readings": readings, "accuracy": {}}
        before = {"readings": {key: [[10, 0.75, 0.75, 0.0, 0.5, 0.0]] for key in keys}, "accuracy": {}}
        found.append({"cell": {"n": n, "m": m, "seed": seed}, "result": {"before": before, "branches": kept}})
    return found


def test_rounds_go_on_from_before_the_change_and_cosines_are_told_by_their_distance_to_one():
    panels = over_rounds(planted(seeds=(0,)))
    assert list(panels) == ["weights, 1 - cosine", "outputs, mean logits"]
    assert panels["weights, 1 - cosine"]["fresh swap"] == {10: [0.25], 11: [0.0]}  # 1 - 0.5 * (1 + 1)
    assert panels["outputs, mean logits"] == {
        "no change": {10: [0.75], 11: [0.5]},
        "fresh swap": {10: [0.75], 11: [1.0]},
        "shift to 70-30": {10: [0.75], 11: [1.5]},
        "shift to 90-10": {10: [0.75], 11: [2.0]},
    }


def test_layers_stand_beside_the_whole_model_each_in_its_order():
    keys = ("weights/cosine/", "weights/cosine/0.weight", "weights/cosine/0.bias", "evaluation/loss/")
    panels = over_layers(planted(keys=keys))
    assert list(panels) == ["weights, cosine"]
    for line in panels["weights, cosine"].values():
        assert list(line) == ["all", "0.weight", "0.bias"]
    assert panels["weights, cosine"]["shift to 90-10"]["0.bias"] == pytest.approx([3.0, 3.01, 3.02])


def test_every_severity_stands_beside_its_own_nulls():
    lines = over_severities(planted())["outputs, mean logits (past deviations)"]
    assert all(list(line) == ["70-30", "90-10"] for line in lines.values())
    at = {label: (line["70-30"][0], line["90-10"][0]) for label, line in lines.items()}
    assert at == {
        "no change": (0.0, 0.0),
        "fresh swap": (1.0, 1.0),
        "shift by fresh samples": (2.0, 3.0),
        "partial swap": (0.25, 0.5),
        "shift by as few samples as it takes": (0.25, 0.25),
    }


def test_every_number_of_clients_has_its_own_seeds():
    panels = over_clients([*planted(10, 3, seeds=(5,)), *planted(2, 1)])
    assert panels["weights, cosine"]["fresh swap"]["1 of 2"] == pytest.approx([1.0, 1.01, 1.02])
    assert panels["weights, cosine"]["fresh swap"]["3 of 10"] == pytest.approx([1.05])
    assert list(panels["weights, cosine"]["no change"]) == ["1 of 2", "3 of 10"]


def test_certainty_is_one_where_all_seeds_lie_above_the_null_and_none_where_all_lie_below():
    panels = certainty(planted())
    assert panels["weights, against a fresh swap"]["cosine"] == {"70-30": [1.0], "90-10": [1.0]}
    assert panels["weights, against a partial swap"]["cosine"] == {"70-30": [0.5], "90-10": [0.0]}
    assert panels["outputs, against a fresh swap"]["chance"] == {"70-30": [0.5], "90-10": [0.5]}


def test_every_number_of_clients_has_its_line_of_certainty():
    calm = planted(10, 3)
    for r in calm:
        made = r["result"]["branches"]
        made["fresh 70-30"] = {**made["fresh swap"], "kind": "fresh", "even": 0.7}
    assert over_sizes([*calm, *planted(5)])["weights, cosine"] == {
        "chance": {"70-30": [0.5], "90-10": [0.5]},
        "1 of 5 clients": {"70-30": [1.0], "90-10": [1.0]},
        "3 of 10 clients": {"70-30": [0.5], "90-10": [1.0]},
    }


def test_the_title_tells_clients_and_seeds(tmp_path, monkeypatch):
    assert extent(planted(1, 1, seeds=(0,))) == "one model, 1 seeds"
    titles = []
    monkeypatch.setattr(
        shift_pictures, "curves", lambda path, panels, title, *rest, **kw: titles.append((title, panels))
    )
    for picture in (ROUNDS, LAYERS, SEVERITIES, CLIENTS, CERTAINTY, SIZES):
        picture(planted(), tmp_path / "p.svg", "a study, some data")
        assert titles[-1] == ("a study, some data: 2 clients, 3 seeds", picture.panels(planted()))
