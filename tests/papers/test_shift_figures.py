"""Figures 5 to 10 and the pictures: numbers by hand, sentences that follow what was planted, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedwarden_research.papers import shift_pictures
from fedwarden_research.papers.item import order_of
from fedwarden_research.papers.shift_figures import (
    centralised_holds,
    centralised_sheets,
    layers_hold,
    layers_sheets,
    line,
    scalability_holds,
    scalability_sheets,
    sensitivity_holds,
    sensitivity_sheets,
)
from fedwarden_research.papers.shift_items import PAPER, draw_diagonal
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
from fedwarden_research.papers.shift_settings import MODELS, count
from fedwarden_research.papers.shifts import STILL, VALIDATION, all_changes

SOURCES = [f"{s}/{m}/" for s in ("weights", "gradients", "representations") for m in ("cosine", "procrustes", "cmd")]
START, END = 6, 8


def planted(seen, severities=(0.7,), n=2, data="mnist", seeds=3, layers=()):
    """Runs in which a source leaves its trend of 1 at the change by ``seen(key, change)`` and a little more."""
    rng = np.random.default_rng(0)
    keys = [
        *SOURCES,
        VALIDATION,
        *(f"{s}/cosine/{x}" for s in ("weights", "gradients", "representations") for x in layers),
    ]
    found = []
    for seed in range(seeds):
        before = {k: [[t, 1.0 + 0.01 * (t % 2), 1.0, 0.0, 0.5, 0.0] for t in range(2, START)] for k in keys}
        branches = {}
        for change in all_changes(severities, partial=False):
            readings = {}
            for k in keys:
                first = 1.0 + seen(k, change) + 1e-4 * rng.random()
                readings[k] = [[START, first, 1.0, 0.0, 0.1, 0.0], [END, 1.0, 1.0, 0.0, 0.5, 0.0]]
            branches[str(change)] = {"kind": change.kind, "even": change.even, "readings": readings, "accuracy": {}}
        cell = {"n": n, "m": 1, "seed": seed, "data": data}
        found.append({"cell": cell, "result": {"before": {"readings": before, "accuracy": {}}, "branches": branches}})
    return found


def tables(sheets):
    return {sheet.name: sheet for sheet in sheets}


def new(change):
    return float(change.kind != STILL)


def test_all_sources_that_see_new_samples_show_the_shift_from_no_change_only():
    def seen(key, change):
        return 0.0 if key == VALIDATION else 0.3 * new(change)

    made = tables(centralised_sheets(planted(seen)))
    row = next(r for r in made["departures"].records() if (r["source"], r["metric"]) == ("weights", "cmd"))
    assert float(row["no change"]) < 0.001
    assert float(row["shift"]) == pytest.approx(0.3, abs=1e-3)
    assert (row["AUROC, no change"], row["p, no change"], row["seeds"]) == ("1", "0.05", "3")  # 1 / (6 choose 3)
    said = centralised_holds(made)
    assert said.startswith("The claim holds: 9 of 9 sources")
    assert "the validation loss does not" in said
    assert len(made["trends"].grid[1]) == 10 * 3 * 6  # sources, branches, rounds


def test_a_loss_that_shows_it_too_and_few_seeds_change_the_sentence():
    made = tables(centralised_sheets(planted(lambda key, change: 0.3 * new(change))))
    assert centralised_holds(made).startswith("The claim holds in part: 9 of 9")
    assert centralised_holds(tables(centralised_sheets(planted(lambda k, c: 0.3, seeds=2)))).startswith("Cannot tell")


@pytest.mark.parametrize(("sign", "said"), [(1, "The claim holds"), (-1, "The claim does not hold")])
def test_layers_are_ranked_by_how_much_of_their_range_they_react(sign, said):
    names = [f"{i}.weight" for i in range(6)]

    def seen(key, change):
        layer = key.split("/")[2]
        depth = names.index(layer) if layer else 0
        return new(change) * 10.0 ** -(3 - sign * (depth - 2.5) * 0.3)

    made = tables(layers_sheets(planted(seen, layers=names)))
    assert [float(r["rho"]) for r in made["order"].records()] == [float(sign)] * 3
    assert layers_hold(made).startswith(said)


def test_few_layers_in_order_prove_nothing():
    def p_of(n):
        return order_of(np.arange(float(n)))[1]

    assert [p_of(n) for n in (3, 4, 5)] == pytest.approx([2 / 6, 2 / 24, 2 / 120])  # of n! orders the two straight ones
    rng = np.random.default_rng(0)
    values = rng.normal(size=9)
    assert order_of(values) == pytest.approx(tuple(stats.spearmanr(range(9), values)))


def test_a_line_is_that_of_scipy_and_few_points_cannot_tell():
    x = [0.55, 0.6, 0.7, 0.8, 0.9, 1.0]
    rng = np.random.default_rng(1)
    y = (2 * np.array(x) + 0.05 * rng.normal(size=6)).tolist()
    slope, r, p, verdict = line(x, y)
    fit = stats.linregress(x, y)
    assert (slope, r, p, verdict) == (fit.slope, fit.rvalue, fit.pvalue, "linear")
    assert line(x, y[::-1])[3] == "not linear"
    assert line(x, [1.0, 0.4, 1.2, 0.9, 1.1, 1.3])[3] == "cannot tell"


def test_points_beside_the_diagonal_and_the_relation_are_told_from_the_tables(tmp_path):
    def seen(key, change):
        grown = change.even - 0.5 if change.kind == "fresh" else 0.0
        return 0.01 * grown if key == VALIDATION else 0.2 * new(change) + grown

    found = planted(seen, (0.6, 0.7, 0.8, 0.9), data="census")
    made = tables(sensitivity_sheets(found))
    (row,) = made["relation"].records()
    assert (row["figure"], row["above the diagonal"], row["an unshifted swap too"]) == ("7c", "4 of 4", "yes")
    assert float(row["slope"]) == pytest.approx(1.0, abs=0.01)
    said = sensitivity_holds(made)
    assert said.startswith(
        "On census (7c) the claim holds: representations by cmd tell a shift from no change at 60-40"
    )
    assert "4 of 4 points lie above the diagonal, and that of an unshifted swap too" in said
    assert "the departure is linear" in said
    (path,) = draw_diagonal(found, tmp_path, "figure-7")
    assert "7c: census" in path.read_text()


def test_more_clients_are_told_apart():
    def seen(key, change):
        return 0.0 if key == VALIDATION else 0.3 * float(change.kind == "fresh")

    quiet = planted(lambda key, change: 0.0, n=10)
    made = tables(scalability_sheets([*planted(seen), *quiet]))
    assert [(r["clients"], r["source"]) for r in made["paper"].records()] == [
        ("2", "gradients"), ("2", "validation"), ("10", "gradients"), ("10", "validation"),
    ]  # fmt: skip
    assert scalability_holds(made).startswith(
        "The claim holds in part: gradients by cosine tell the shift from no change with 2 clients, and the validation "
        "loss with no number of clients; from an unshifted swap of all samples the source tells it with 2 clients."
    )


def test_every_table_and_figure_of_the_paper_is_an_item():
    names = {item.name for item in PAPER.items}
    assert {f"figure-{i}" for i in range(1, 11)} | {f"table-{i}" for i in range(1, 4)} <= names


@pytest.mark.parametrize("model", MODELS)
def test_models_have_the_published_size(model):
    assert count({"model": model})["parameters"] == pytest.approx(MODELS[model][2], rel=0.02)


MOVES = {"no change": 0.0, "fresh swap": 1.0, "fresh 70-30": 2.0, "fresh 90-10": 3.0, "partial swap 90-10": 0.5}


def departing(n=2, m=1, seeds=(0, 1, 2), keys=("weights/cosine/", "outputs/mean_logits/")):
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
    panels = over_rounds(departing(seeds=(0,)))
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
    panels = over_layers(departing(keys=keys))
    assert list(panels) == ["weights, cosine"]
    for shown in panels["weights, cosine"].values():
        assert list(shown) == ["all", "0.weight", "0.bias"]
    assert panels["weights, cosine"]["shift to 90-10"]["0.bias"] == pytest.approx([3.0, 3.01, 3.02])


def test_every_severity_stands_beside_its_own_nulls():
    lines = over_severities(departing())["outputs, mean logits (past deviations)"]
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
    panels = over_clients([*departing(10, 3, seeds=(5,)), *departing(2, 1)])
    assert panels["weights, cosine"]["fresh swap"]["1 of 2"] == pytest.approx([1.0, 1.01, 1.02])
    assert panels["weights, cosine"]["fresh swap"]["3 of 10"] == pytest.approx([1.05])
    assert list(panels["weights, cosine"]["no change"]) == ["1 of 2", "3 of 10"]


def test_certainty_is_one_where_all_seeds_lie_above_the_null_and_none_where_all_lie_below():
    panels = certainty(departing())
    assert panels["weights, against a fresh swap"]["cosine"] == {"70-30": [1.0], "90-10": [1.0]}
    assert panels["weights, against a partial swap"]["cosine"] == {"70-30": [0.5], "90-10": [0.0]}
    assert panels["outputs, against a fresh swap"]["chance"] == {"70-30": [0.5], "90-10": [0.5]}


def test_every_number_of_clients_has_its_line_of_certainty():
    calm = departing(10, 3)
    for r in calm:
        made = r["result"]["branches"]
        made["fresh 70-30"] = {**made["fresh swap"], "kind": "fresh", "even": 0.7}
    assert over_sizes([*calm, *departing(5)])["weights, cosine"] == {
        "chance": {"70-30": [0.5], "90-10": [0.5]},
        "1 of 5 clients": {"70-30": [1.0], "90-10": [1.0]},
        "3 of 10 clients": {"70-30": [0.5], "90-10": [1.0]},
    }


def test_the_title_tells_clients_and_seeds(tmp_path, monkeypatch):
    assert extent(departing(1, 1, seeds=(0,))) == "one model, 1 seeds"
    titles = []
    monkeypatch.setattr(
        shift_pictures, "curves", lambda path, panels, title, *rest, **kw: titles.append((title, panels))
    )
    for picture in (ROUNDS, LAYERS, SEVERITIES, CLIENTS, CERTAINTY, SIZES):
        picture(departing(), tmp_path / "p.svg", "a study, some data")
        assert titles[-1] == ("a study, some data: 2 clients, 3 seeds", picture.panels(departing()))
