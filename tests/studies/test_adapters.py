"""The study of adapters: every way to train and to combine plays a round."""

import pytest

from fedwarden_research.studies import adapters


@pytest.mark.parametrize("way", [adapters.EXACT, adapters.PADDED, adapters.DENSE])
def test_every_way_plays_and_is_counted(way):
    found = adapters.measure({"case": "sign flip", "guard": "auto", "way": way, "rate": 0.01, "seed": 0, "rounds": 2})
    assert found["honest_out"] == 0
    assert 0.2 < found["late_accuracy"] < 0.9  # a tenth by chance


def test_attackers_run_at_every_rate_with_adapters_and_with_whole_weights():
    cells = [cell for cell, _ in adapters.cells(20, 15, ["label flip", "control"])]
    attacked = [(cell["way"], cell["rate"]) for cell in cells if cell["case"] == "label flip"]
    assert {pair: attacked.count(pair) for pair in attacked} == {
        (way, rate): 5 for way in (adapters.EXACT, adapters.DENSE) for rate in (0.001, 0.003, 0.01)
    }
    assert len([cell for cell in cells if cell["case"] == "control" and cell["guard"] == "auto"]) == 20
