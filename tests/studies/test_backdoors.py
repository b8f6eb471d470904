"""The study of backdoors: its cells, and its tables by hand."""

from __future__ import annotations

from collections import Counter

import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.sim.scenario import load_scenario
from fedwarden_research.studies.backdoors import (
    ATTACKS,
    DEFENCES,
    HELD,
    SHARES,
    SOURCES,
    accuracy_table,
    cells,
    excluded_table,
    headline,
    page,
    success_table,
)


def made(success, accuracy=0.9, caught=0, wronged=0):
    """Results of the writers' cells with two attacks; ``success`` by defence, FedAvg's being 1."""
    found = []
    for cell, table in cells(range(2), "writers", 30, ("FedAvg", "auto"), ("backdoor", "DBA")):
        f = len(table["attacks"][0]["clients"]) if table["attacks"] else 0
        guarded = cell["defence"] == "auto"
        result = {
            "attack_success": (success if guarded else 1.0) if f else None,
            "late_accuracy": accuracy if guarded else 0.9,
            "attackers": f,
            "caught": min(caught, f) if guarded else 0,
            "wronged": wronged if guarded and cell["seed"] == 0 else 0,
        }
        found.append({"cell": cell, "result": result})
    return found


@pytest.mark.parametrize("data", SOURCES)
def test_every_cell_is_a_scenario_and_there_is_one_without_attack_per_defence(data):
    wanted = cells(range(2), data, 30)
    divisions = 1 if data.startswith("writers") else 2
    cases = 1 + len(SHARES) * (len(ATTACKS) - 1)
    assert len(wanted) == 2 * divisions * cases * len(DEFENCES)
    assert len({str(cell) for cell, _ in wanted}) == len(wanted)
    assert Counter(c["share"] for c, _ in wanted)[0.0] == 2 * divisions * len(DEFENCES)
    for cell, table in wanted[:: len(DEFENCES) - 1]:
        scenario = load_scenario(table)
        held = HELD.get(cell["defence"], {})
        assert (scenario.data.reserve, scenario.data.reserve_labels) == (
            held.get("reserve", 0),
            held.get("reserve_labels", True),
        )
        assert len({frozenset(a.clients) for a in scenario.attacks}) <= 1  # one group carries out all parts


def test_an_unknown_name_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="DBA"):
        cells([0], "mnist", 30, attacks=["DAB"])
    with pytest.raises(ConfigError, match="writers"):
        cells([0], "writer", 30)


def test_held_and_not_held():
    assert "in 6 of 6 cases." in headline(made(0.2, 0.891), "writers")
    assert "in 0 of 6 cases." in headline(made(0.21), "writers")
    slow = headline(made(0.0, 0.88), "writers")
    assert "in 0 of 6 cases." in slow
    assert "  - real writers, DBA, 25 %: success 0.00, accuracy 2.0 points below that of FedAvg without attack" in slow


def test_tables_by_hand():
    found = made(0.25, caught=2, wronged=1)
    assert success_table(found, "writers", "real writers").splitlines() == [
        "| defence | backdoor, 10 % | backdoor, 25 % | backdoor, 40 % | DBA, 10 % | DBA, 25 % | DBA, 40 % |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| FedAvg |" + " 100.0 ± 0.0 |" * 6,
        "| auto |" + " 25.0 ± 0.0 |" * 6,
    ]
    assert accuracy_table(found, "writers", "real writers").splitlines()[0].startswith("| defence | no attack |")
    rows = excluded_table(found, "writers").splitlines()[2:]
    assert rows[0] == "| real writers | no attack | auto | - | 1 of 2 |"
    assert rows[2] == "| real writers | backdoor, 25 % | auto | 4 of 6 | 1 of 2 |"
    assert "fedwarden bench backdoors --data writers" in page(
        found, "writers", 30, "fedwarden bench backdoors --data writers"
    )
