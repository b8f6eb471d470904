"""Jurors in the simulator: what they report, and that a resumed run goes on with the same bits."""

import numpy as np
import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.guard.jury import WORSE
from fedwarden.guard.replay import replay
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger

TABLE = {
    "rounds": 5,
    "data": {"clients": 8, "limit": 400},
    "model": {"name": "mlp", "hidden": [8]},
    "train": {"workers": 1, "group": 2},
    "attacks": [{"name": "label_flip", "clients": [0, 5]}],
    "guard": {"preset": "auto", "jurors": ["5", "6", "7"]},
}


def scenario_of(**changes):
    return load_scenario({**TABLE, **changes})


def test_a_juror_reports_the_share_of_its_examples_whose_loss_rose():
    """Against a loop over its own rows, the poisoned ones of an attacker included; in the first round nothing."""
    federation = Federation(scenario_of())
    models = [federation.params]
    records = []
    for record in federation.play():
        records.append(record)
        models.append(federation.params)
    assert WORSE not in records[0].reported
    for record, before, now in zip(records[1:], models, models[1:], strict=False):
        assert set(record.reported[WORSE]) == {"5", "6", "7"}
        for juror, told in record.reported[WORSE].items():
            rows = federation.world.rows[juror]
            x, y = federation.world.x[rows], federation.world.y[rows]
            others = [label for label in range(10) if not (y == label).any()]
            losses = []
            for params in (before, now):
                federation.model.load_state_dict(federation.engine.layout.unflatten(params))
                with torch.no_grad():
                    outputs = federation.model(x)
                outputs[:, others] = -np.inf
                losses.append([-float(o.log_softmax(0)[label]) for o, label in zip(outputs, y, strict=True)])
            rose = sum(b > a + 1e-7 for a, b in zip(*losses, strict=True)) / len(y)
            assert told == pytest.approx(rose, abs=1.5 / len(y))  # a tie may fall either way


def test_a_resumed_run_has_the_same_bits(tmp_path):
    whole = simulate(scenario_of(), tmp_path / "a")
    simulate(scenario_of(rounds=3), tmp_path / "b")
    rest = simulate(scenario_of(), tmp_path / "b", resume=1)
    assert torch.equal(whole.params, rest.params)
    for one, other in zip(whole.records, rest.records, strict=True):
        assert one.reported == other.reported
        assert one.weights.tolist() == other.weights.tolist()


def test_a_replay_from_the_ledger_decides_the_same(tmp_path):
    scenario = scenario_of(rounds=8)
    simulate(scenario, tmp_path)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    again = replay(records, scenario.guard.build(secret=scenario.seed))
    for one, other in zip(records, again, strict=True):
        assert (one.weights > 0).tolist() == (other.weights > 0).tolist()
        assert one.excluded == other.excluded


def test_without_jurors_nobody_measures_and_the_checkpoint_holds_no_losses(tmp_path):
    federation = Federation(scenario_of(guard={"preset": "auto"}))
    records = list(federation.play())
    assert "losses" not in federation.state_dict()
    assert all(WORSE not in record.reported for record in records)


def test_a_juror_that_does_not_exist_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"guard\.jurors: there is no client '77'"):
        Federation(scenario_of(guard={"jurors": ["77"]}))


def test_with_labelled_samples_both_bets_are_made():
    federation = Federation(scenario_of(rounds=3, data={"clients": 8, "reserve": 60, "probe": 60}))
    records = list(federation.play())
    assert {"harm", "jury"} <= {watch.name for watch in records[-1].watches}
