"""The study of attackers that evade: its cells, what it measures, and its tables by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.core.errors import ConfigError
from fedwarden.core.types import RoundRecord
from fedwarden.sim.scenario import load_scenario
from fedwarden.studies.runner import results_file
from fedwarden_research.studies import evaders
from fedwarden_research.studies.evaders import (
    FLIPS,
    GROUPS,
    HONEST,
    LEFT_OUT,
    PLAIN,
    Evaded,
    cases,
    cells,
    headline,
    tally,
)
from fedwarden_research.studies.plan import Asked


def table(group, case, seed=0, rounds=3):
    """The cell of a case with FedAvg whose name begins so."""
    return next(
        t for cell, t in cells([seed], rounds, [group]) if cell["case"].startswith(case) and cell["defence"] == PLAIN
    )


def made(costs=0.0, held=0.5, sites=(0.7, 0.78, 0.8)):
    """Results of all cases; ``sites`` are FedAvg, the guard and without the site."""
    found = []
    for cell, _ in cells(range(2), 60):
        honest = cell["case"] == HONEST
        accuracy = 0.9 if honest or cell["defence"] == PLAIN else 0.9 - costs
        if cell["group"] == "four sites" and not honest:
            accuracy = sites[2] if cell["case"] == LEFT_OUT else sites[0] if cell["defence"] == PLAIN else sites[1]
        share = held if cell["group"] == "new names" and not honest else None
        found.append({"cell": cell, "result": {"late_accuracy": accuracy, "held": share}})
    return found


def test_every_cell_is_a_scenario_with_the_attackers_that_it_names():
    wanted = cells(range(2), 60)
    assert len(wanted) == 2 * len(cases(60)) * len(evaders.DEFENCES)
    assert len({str(cell) for cell, _ in wanted}) == len(wanted)
    for cell, table in wanted[:: len(evaders.DEFENCES)]:
        scenario = load_scenario(table["scenario"])
        assert set(scenario.attackers()) <= set(table["attackers"])
        assert (scenario.data.probe, scenario.data.reserve) == (0, 100), cell
    with pytest.raises(ConfigError, match="buffers"):
        evaders.plan(Asked(case=["bufers"]))


def test_attackers_take_new_names_and_are_admitted():
    wanted = table("new names", "label flip, 2", rounds=7)
    assert wanted["names"] == 3
    federation = Evaded(load_scenario(wanted["scenario"]), wanted["attackers"], wanted["names"], 0.0)
    records = list(federation.play())
    assert [r.client_ids[:3] for r in records[2:4]] == [
        ("0, name 1", "1, name 1", "2"),
        ("0, name 2", "1, name 2", "2"),
    ]
    assert records[6].client_ids[0] == "0, name 3"
    assert not any(r.rejected for r in records)


def test_buffers_lie_six_deviations_off_and_weights_as_trained():
    wanted = table("buffers", "6 deviations off, 3")
    federation = Evaded(load_scenario(wanted["scenario"]), wanted["attackers"], 0, 6.0)
    layout = federation.engine.layout
    rng = np.random.default_rng(0)
    models = federation.params + federation.params.new_tensor(rng.normal(size=(10, len(federation.params))))
    before = models.clone()
    federation._cohort(1, federation.clients, models, {})
    moved = {name: slice(a, b) for name, a, b in layout.ranges() if name.endswith(("running_mean", "running_var"))}
    assert len(moved) == 2
    for name, a, b in layout.ranges():
        if name not in moved:
            assert models[:, a:b].equal(before[:, a:b])
            continue
        honest = before[3:, a:b].numpy()
        assert models[3:, a:b].equal(before[3:, a:b])
        expected = honest.mean(axis=0) + 6 * honest.std(axis=0, ddof=1)
        for i in range(3):
            np.testing.assert_allclose(models[i, a:b].numpy(), expected, rtol=1e-5)


def test_what_attackers_hold_together_is_in_shares_of_a_median_client_after_the_first_rounds():
    def record(t, weights):
        ids = ("0, name 4", "1", "2", "3")
        return RoundRecord(t, ids, np.ones(4), np.array(weights), metrics={"accuracy": 0.5})

    early = [record(t, [0.7, 0.1, 0.1, 0.1]) for t in range(1, 11)]
    late = [record(11, [0.2, 0.4, 0.4, 0.0]), record(12, [0.0, 0.4, 0.3, 0.3])]
    assert tally(early + late, {"0"}) == {"late_accuracy": 0.5, "held": 0.25}
    assert tally(early, {"0"})["held"] is None


def test_bars_are_met_or_missed():
    good = headline(made(costs=0.01))
    assert good.count(": met") == 4
    assert "wins 80 % of what leaving that site out wins" in good
    bad = headline(made(costs=0.031, held=1.2, sites=(0.7, 0.74, 0.8)))
    assert bad.count(": missed") == 4
    assert "the attackers hold 1.20 median shares together at most" in bad
    assert evaders.costs(made(), "four sites", FLIPS, PLAIN) == pytest.approx(0.2)


def test_the_command_makes_the_page_of_kept_results_and_runs_nothing(tmp_path, monkeypatch):
    found = [r for r in made() if r["cell"]["group"] != "four sites"]
    path = results_file(tmp_path, "evaders-60")
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(r) + "\n" for r in found))
    before = path.read_bytes()
    groups = [w for g in GROUPS if g != "four sites" for w in ("--case", g)]
    assert main(["bench", "evaders", "--seeds", "2", *groups, "--home", str(tmp_path), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "evaders.md").read_text()
    assert text.startswith("# Attackers that evade\n\n" + headline(found))
    assert (tmp_path / "evaders.csv").read_text().startswith("setting,case,guard,runs")
    assert path.read_bytes() == before
