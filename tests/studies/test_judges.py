"""Settings of others: what was published, their scenarios, and the page from made-up results."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.core.types import RoundRecord
from fedwarden.sim.models import build_model
from fedwarden.sim.scenario import load_scenario
from fedwarden_research.studies.judge_settings import FLPOISON, JUDGES, LFIGHTER
from fedwarden_research.studies.judges import backfed, cells, choose, page, table, tally, worst_cases
from markdown_rows import rows

PAGE = Path(__file__).parents[2] / "docs/results/judges.md"


def result(judge, attack, defence, accuracy, success, seed=0):
    found = {"accuracy": accuracy, "attack_success": success, "caught": 4, "wronged": 0}
    return {"cell": {"judge": judge.name, "attack": attack, "defence": defence, "seed": seed}, "result": found}


@pytest.mark.parametrize("judge", JUDGES, ids=lambda judge: judge.name)
def test_every_cell_is_a_scenario_with_that_many_attackers(judge):
    made = cells([0], [judge])
    assert [(cell["attack"], cell["defence"]) for cell, _ in made] == judge.pairs
    for cell, given in made:
        scenario = load_scenario(given)
        assert scenario.rounds == judge.rounds
        assert len(scenario.attackers()) == (
            0 if cell["attack"] == "none" else {"lfighter": 40, "flpoison": 24}[judge.name]
        )
        scenario.guard.build()
    assert set(judge.published) <= set(judge.pairs)


def test_the_worst_case_is_over_attacks_and_seeds_and_the_best_defence_comes_first():
    made = [
        ("none", "auto", 0, 0.1, None), ("ALIE", "auto", 0, 0.95, None), ("label flip", "auto", 0, 0.9, 0.02),
        ("label flip", "auto", 1, 0.97, 0.04), ("ALIE", "RFA", 0, 0.92, None),
    ]  # fmt: skip
    found = [
        result(FLPOISON, attack, defence, accuracy, success, seed) for attack, defence, seed, accuracy, success in made
    ]
    assert worst_cases(found, FLPOISON).endswith(": RFA 92.0, auto 90.0 / 4.0.")


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("lfighter_cnn", 10 * 26 + 20 * 251 + 50 * 321 + 10 * 51),  # the authors' layers, counted by hand
        ("lenet5", 6 * 26 + 16 * 151 + 120 * 401 + 84 * 121 + 10 * 85),
    ],
)
def test_models_have_the_published_layers(name, weights):
    model = build_model(name, {}, (1, 28, 28), 10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == weights


def test_the_table_by_hand():
    results = [
        result(LFIGHTER, "label flip", "LFighter", 0.96, 0.01),
        result(LFIGHTER, "label flip", "auto", 0.95, 0.02),
        result(LFIGHTER, "none", "FedAvg", 0.97, None),
        result(FLPOISON, "ALIE", "auto", 0.5, None),
    ]
    assert rows(table(results, LFIGHTER)) == [
        ["none", "FedAvg", "-", "97.0", "-", "-", "4.0", "0.0", "1"],
        ["label flip", "LFighter", "96.30", "96.0", "0.68", "1.0", "4.0", "0.0", "1"],
        ["label flip", "auto", "-", "95.0", "-", "2.0", "4.0", "0.0", "1"],
    ]
    text = page(results, JUDGES, None, "fedwarden bench judges")
    assert all(judge.source in text and table(results, judge) in text for judge in JUDGES)
    assert "A trial: 2 rounds" in page(results, JUDGES, 2, "")
    assert text.endswith(backfed())
    assert PAGE.read_text(encoding="utf-8").endswith(backfed() + "\n")


def test_the_last_ten_rounds_are_averaged():
    records = [
        RoundRecord(t, (), (), (), metrics={"accuracy": 0.0 if t <= 2 else 0.5 + t / 100, "attack_success": t / 100})
        for t in range(1, 13)
    ]
    assert tally(records) == {"accuracy": pytest.approx(0.575), "attack_success": pytest.approx(0.075)}
    assert tally([RoundRecord(1, (), (), (), metrics={"accuracy": 0.5})])["attack_success"] is None


def test_judges_are_chosen_by_name():
    assert choose([]) == list(JUDGES)
    with pytest.raises(ConfigError, match="no judge 'lfigther'; did you mean 'lfighter'"):
        choose(["lfigther"])
