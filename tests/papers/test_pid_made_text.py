"""Figures 5 and 9 of PID-MADE: thresholds by closed forms on scores made by hand, and tables of made-up runs."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden.core.registry import make
from fedwarden.sim.scenario import load_scenario
from fedwarden_research.papers.page import page, write
from fedwarden_research.papers.pid_made_clients import FIGURE_9
from fedwarden_research.papers.pid_made_clients import count_topics as count
from fedwarden_research.papers.pid_made_items import PAPER
from fedwarden_research.papers.pid_made_text import (
    ATTACKED,
    CLEAN,
    CLIENTS,
    DEFENCES,
    FIGURE_5,
    ROUNDS,
    SEEN,
    SLOW,
    cells,
    deviations,
    excluded_by,
    needed,
    pid_scores,
    run,
    scenario,
    seen,
)  # fmt: skip
from tiny_text import data_folder

OTHERS = np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])  # of deviation 1
SCALE = OTHERS.std()


def distances(r):
    """Eight clients of which the first lies r deviations of the others above their mean, in every round the same."""
    return np.tile(np.concatenate([[10 + r * SCALE], 10 + OTHERS]), (ROUNDS, 1))


def made_up(r=4.0):
    """Results of every defence for two seeds; distances are the same in every round."""
    found = []
    for defence in DEFENCES:
        for seed in (0, 1):
            values = distances(0.0 if defence == CLEAN else r)
            scores = pid_scores(values, 1.0, 0.5, 0.05)
            by_client = [
                {what: dict(zip(map(str, range(CLIENTS)), row.tolist(), strict=True)) for what, row in pair.items()}
                for pair in ({"signal": a, "scores": b} for a, b in zip(values, scores, strict=True))
            ]
            watch = {w: [row[w] for row in by_client] for w in ("signal", "scores")} | {"threshold": [None] * ROUNDS}
            watches = {str(w["name"]): watch for w in SEEN} if defence in (CLEAN, ATTACKED, SLOW) else {}
            result = {
                "accuracy": [0.5 + 0.01 * t for t in range(ROUNDS)], "loss": [2.0 - 0.1 * t for t in range(ROUNDS)],
                "clients_accuracy": [0.4] * ROUNDS, "weight": [0.125] * ROUNDS, "excluded": {"0": 3} if seed else {},
                "watches": watches,
            }  # fmt: skip
            found.append({"cell": {"defence": defence, "seed": seed}, "result": result})
    return found


@pytest.mark.parametrize("r", [1.0, 3.0, 5.26, 20.0])
def test_deviations_of_one_far_value(r):
    values = distances(r)[0]
    assert deviations(r, CLIENTS) == pytest.approx((values[0] - values.mean()) / values.std())
    assert deviations(1e9, CLIENTS) == pytest.approx(np.sqrt(CLIENTS - 1))


@pytest.mark.parametrize("k", [1.0, 2.0, 2.33])
def test_a_threshold_flags_from_the_distance_that_is_needed_on(k):
    rule = make("rule", "k_sigma", k=k)
    for factor, flagged in ((0.99, False), (1.01, True)):
        assert rule(distances(factor * needed(k, CLIENTS))[0], 1).flagged[0] == flagged


def test_with_equal_rounds_every_coefficient_gives_the_same_deviations():
    scores = pid_scores(distances(4.0), 1.0, 0.5, 0.05)
    assert scores[0] == pytest.approx(distances(4.0)[0])
    assert scores[3] == pytest.approx(2.5 * distances(4.0)[0])  # D + .5 * 3 D
    assert excluded_by(make("rule", "k_sigma", k=2.33), scores) == {}
    assert excluded_by(make("rule", "k_sigma", k=2.0), scores) == {0: 2}  # from round 2 on, and nobody of the rest


def test_the_tables_of_figure_5():
    sheets = {s.name: s for s in FIGURE_5.sheets(made_up())}
    z = deviations(4.0, CLIENTS)
    first = sheets["separation"].records()[1]
    assert (first["K_I"], first["client 0, at least"]) == ("0.5", f"{z:.2f}")
    rules = {r["threshold"]: r for r in sheets["thresholds"].records()}
    assert rules["mean + 2.33 sigma"]["rounds with client 0 above it"] == "0 of 14"
    assert rules["Cantelli, alpha .2"]["k"] == "2.00"
    assert rules["Cantelli, alpha .2"]["rounds with client 0 above it"] == "14 of 14"
    assert rules["Cantelli, alpha .2"]["client 0 excluded for good"] == "2 of 2"
    assert rules["Cantelli, alpha .1"]["deviations of the others needed"] == "inf"
    told = FIGURE_5.holds(sheets)
    assert "Cantelli, alpha .2" in told
    assert f"{needed(2.33, CLIENTS):.1f} deviations" in told
    row = sheets["defences"].records()[1]
    assert (row["attacker excluded"], row["in round"], row["honest excluded"]) == ("1 of 2", "3", "0.0 of 7")


def test_pictures_and_page(tmp_path):
    topics = [[c, f"topic {c}", 10 * c + 5, 100] for c in range(CLIENTS)]
    alike = (np.full((CLIENTS, CLIENTS), 0.5) + 0.5 * np.eye(CLIENTS)).tolist()
    nine = [{"cell": {"seed": 0}, "result": {"topics": topics, "texts": [9] * CLIENTS, "cosine": alike}}]
    files = [*write(PAPER, FIGURE_5, made_up(), tmp_path), *write(PAPER, FIGURE_9, nine, tmp_path)]
    assert {f.suffix for f in files} == {".csv", ".svg"}
    text = page(PAPER, tmp_path / PAPER.name)
    assert "## Figure 5: Masked language modelling" in text
    assert "--device cuda" in text
    assert "## Figure 9: The topics" in text


def test_every_cell_is_a_scenario_that_can_be_read():
    made = cells([0, 1], "cuda")
    assert len(made) == 2 * len(DEFENCES)
    for cell, table in made:
        read = load_scenario(table)
        assert len(read.attacks) == (cell["defence"] != CLEAN)
        assert read.model.options["mixed"]
        assert read.guard.build() is not None


def test_a_run_gives_what_the_tables_read(tmp_path, monkeypatch, one_thread):
    """A tiny BERT in place of the language model, two rounds, and the first client attacks."""
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    monkeypatch.setenv("FEDWARDEN_DATA", str(data_folder(tmp_path, CLIENTS)))
    monkeypatch.setenv("FEDWARDEN_CACHE", str(tmp_path / "cache"))
    table = scenario(ATTACKED, 0, "cpu")
    small = {
        "rounds": 2,
        "data": {**table["data"], "dataset": {"name": "medquad", "tokenizer": "tiny", "length": 8}, "probe": 8},
        "model": {"name": "masked_lm", "base": "tiny"},
        "train": {**table["train"], "steps": 2},
    }
    found = run({**table, **small})
    assert len(found["accuracy"]) == len(found["weight"]) == 2
    assert seen(found, "PID").shape == seen(found, "divergence").shape == (2, CLIENTS)
    counted = count({**scenario(CLEAN, 0, "cpu"), "data": small["data"]})
    assert counted["texts"] == [45] * CLIENTS
    assert np.diag(counted["cosine"]) == pytest.approx(1.0)
