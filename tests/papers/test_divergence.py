"""The study of the watch: its cells, its measures by hand, and one small run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.divergence import (
    ALPHAS,
    CLIENTS,
    CORRUPTIONS,
    SETTINGS,
    WATCHES,
    auroc,
    calm_table,
    cells,
    detection_table,
    draw_calm,
    draw_corrupted,
    late,
    rank_one,
    run,
    thirds_table,
)

ROUNDS = 20
LATE = 6


def rows(grid):
    return [list(row) for row in grid[1]]


def seen(score=None, signal=None, flagged=None, early=0.0):
    """What one watch saw: the same in every late round, and something else before."""

    def spread(values, before):
        return [list(np.full(CLIENTS, before)) if t < LATE else list(values) for t in range(ROUNDS)]

    return {
        "score": spread(np.zeros(CLIENTS) if score is None else score, early),
        "signal": spread(np.zeros(CLIENTS) if signal is None else signal, early),
        "flagged": spread(np.zeros(CLIENTS) if flagged is None else flagged, early),
    }


def result(corruption="blur", alpha=1.0, seed=0, accuracy=0.8, **watches):
    quiet = {name: watches.get(name, seen()) for name in WATCHES}
    return {
        "cell": {"corruption": corruption, "alpha": alpha, "seed": seed},
        "result": {"accuracy": [0.1] * (ROUNDS - 1) + [accuracy], **quiet},
    }


FIRST = np.where(np.arange(CLIENTS) == 0, 7.0, np.arange(CLIENTS) / 10)
THIRD = np.where(np.arange(CLIENTS) == 0, 7.5, np.arange(CLIENTS))  # clients 8 and 9 lie above client 0


def test_the_cells():
    made = cells([0, 1])
    assert len(made) == (len(ALPHAS) + len(CORRUPTIONS)) * 2
    assert len({json.dumps(cell, sort_keys=True) for cell, _ in made}) == len(made)
    for cell, table in made:
        scenario = load_scenario(table)
        assert scenario.attackers().keys() == (set() if cell["corruption"] == "none" else {0})
        assert (scenario.data.clients, scenario.rounds, scenario.seed) == (CLIENTS, ROUNDS, cell["seed"])
        assert scenario.data.partition.options["alpha"] == cell["alpha"]
        guard = scenario.guard.build()
        assert {w.name for w in guard.watches + guard.waiting} == set(WATCHES)
        for attack in scenario.attacks:
            attack.make("attack")
    assert {t["train"]["device"] for _, t in cells([0], "cuda")} == {"cuda"}


@pytest.mark.parametrize("data", SETTINGS)
def test_every_setting_is_a_scenario(data):
    for _, table in cells([0], data=data):
        assert load_scenario(table).rounds == SETTINGS[data]["rounds"]


def test_thirds_by_hand():
    """Twenty rounds are 7, 7 and 6; client 0 is first from round 7 on: once in the first seven, and in all later."""
    found = {(r[0], r[1]): r[2:] for r in rows(thirds_table([result("blur", ensemble=seen(FIRST, early=0.0))]))}
    assert found["blur", "ensemble"] == ["1.000", "1.000", "1.000"]  # argmax of equal scores is the first client
    late_only = seen(FIRST)
    for t in range(LATE):
        late_only["score"][t] = list(THIRD)
    found = {(r[0], r[1]): r[2:] for r in rows(thirds_table([result("blur", ensemble=late_only)]))}
    assert found["blur", "ensemble"] == [".143", "1.000", "1.000"]


def test_late_rounds_are_those_after_the_first_third():
    found = late(result(divergence=seen(FIRST, early=-1.0))["result"], "divergence")
    assert found.shape == (14, 10)  # of twenty
    assert (found == FIRST).all()


def test_ranks_by_hand():
    assert rank_one(result(divergence=seen(FIRST))["result"], "divergence") == 1.0
    assert rank_one(result(divergence=seen(THIRD))["result"], "divergence") == 0.0
    mixed = seen(FIRST)
    for t in range(LATE, LATE + 7):
        mixed["score"][t] = list(THIRD)
    assert rank_one(result(divergence=mixed)["result"], "divergence") == 0.5


def test_the_area_by_hand():
    """Client 0 lies above seven of nine others; with both seeds, in half of the pairs across seeds too."""
    one = result(divergence=seen(THIRD))["result"]
    assert auroc([one], "divergence") == pytest.approx(7 / 9)
    assert auroc([result(divergence=seen(FIRST))["result"]], "divergence") == 1.0
    other = result(divergence=seen(THIRD + 100))["result"]
    # of the four pairings of seeds: 7/9, 7/9, all (a high client 0 beside low others), none
    assert auroc([one, other], "divergence") == pytest.approx((7 / 9 + 7 / 9 + 1 + 0) / 4)


def test_the_detection_table_by_hand():
    flags = np.zeros(CLIENTS)
    flags[[0, 4]] = 1.0
    results = [
        result("blur", seed=0, divergence=seen(FIRST, flagged=flags), ensemble=seen(FIRST)),
        result("blur", seed=1, divergence=seen(THIRD), ensemble=seen(FIRST)),
        result("none", divergence=seen(THIRD, flagged=flags)),
    ]
    found = {(r[0], r[1]): r[2:] for r in rows(detection_table(results))}
    assert list(found) == [("blur", watch) for watch in WATCHES]
    # pairs: 1, 7/9, client 0 of the first seed (7) above 1 to 6 and level with 7 of the second: 6.5/9, the other way 1
    area = (1 + 7 / 9 + 6.5 / 9 + 1) / 4
    assert found["blur", "divergence"] == ["z 7.2", ".500 ± .707", f"{area:.3f}", "0.50", "0.056"]  # 1 of 18 honest
    assert found["blur", "ensemble"] == ["score 7.0", "1.000 ± .000", "1.000", "0.00", "0.000"]
    assert found["blur", "direction"][2] == "0.500"
    assert rows(detection_table([])) == []


def test_the_calm_table_by_hand():
    flags = np.where(np.arange(CLIENTS) < 2, 1.0, 0.0)
    results = [
        result("none", 0.1, 0, 0.7, divergence=seen(signal=np.full(CLIENTS, 0.2), flagged=flags)),
        result("none", 0.1, 1, 0.8, divergence=seen(signal=np.full(CLIENTS, 0.3))),
        result("none", 100.0, 0, 0.9),
        result("blur", 1.0),
    ]
    assert rows(calm_table(results)) == [
        ["100", ".000", ".900", *["0.000"] * 6],
        ["0.1", ".250 ± .071", ".750 ± .071", "0.100", *["0.000"] * 5],
    ]


def test_pictures_of_heterogeneity_and_of_corruptions(tmp_path):
    results = [result("none", alpha, divergence=seen(signal=FIRST)) for alpha in ALPHAS]
    results += [result(name, divergence=seen(signal=FIRST)) for name in CORRUPTIONS]
    paths = [*draw_calm(results, tmp_path, "watch"), *draw_corrupted(results, tmp_path, "watch")]
    assert [p.name for p in paths] == [
        "watch-heterogeneity.svg", "watch-corruption.svg", "watch-corruption-z.svg",
    ]  # fmt: skip
    first, second, third = (p.read_text() for p in paths)
    assert all(f"Dirichlet {alpha:g}" in first for alpha in ALPHAS)
    for picture in (second, third):
        assert all(name in picture for name in ("corrupted", "client 9", *CORRUPTIONS))
    assert "robust z" in third


def test_what_was_not_run_is_not_drawn(tmp_path):
    found = [result("blur", divergence=seen(signal=FIRST))]
    assert draw_calm(found, tmp_path, "watch") == []
    paths = draw_corrupted(found, tmp_path, "watch")
    assert [p.name for p in paths] == ["watch-corruption.svg", "watch-corruption-z.svg"]
    assert "rotation" not in paths[0].read_text()


def test_a_small_run_tells_what_every_watch_saw():
    table = {
        "rounds": 2,
        "data": {"clients": 4, "reserve": 30},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"workers": 1, "group": 2},
        "attacks": [{"name": "blur", "sigma": 3.0, "count": 1}],
        "guard": {"preset": "watch"},
    }
    found = run(table)
    assert set(found) == {"accuracy", "weights", *WATCHES}
    assert found["weights"] == pytest.approx([0.5, 0.5], abs=0.01)  # two of four, and nobody is weighed down
    assert len(found["accuracy"]) == 2
    for name in WATCHES:
        for what in ("signal", "score", "flagged"):
            assert np.shape(found[name][what]) == (2, 4)
            assert np.isfinite(found[name][what]).all()
    assert json.loads(json.dumps(found)) == found
    assert min(min(values) for values in found["divergence"]["signal"]) > 0
