"""Jurors in the simulator: what they report, and that a resumed run goes on with the same bits."""

import numpy as np
import pytest
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.core.reported import WORSE
from fedwarden.guard.replay import replay
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.training.pool import Pool
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


FLIPPERS = [{"name": "label_flip", "clients": [0, 1]}]
PAIRED = {"preset": "auto", "jurors": ["5", "6", "7"], "paired": True}


def paired_of(**changes):
    """Two clients in doubt from round 4 on, which flip the signs of their updates."""
    attacks = [{"name": "sign_flip", "clients": [0, 1]}]
    return scenario_of(**{"rounds": 9, "guard": PAIRED, "attacks": attacks, **changes})


def test_paired_jurors_measure_and_train_the_model_that_they_are_sent(monkeypatch):
    federation = Federation(paired_of())
    trained, tested = [], 0
    train = Pool.train

    def spy(pool, params, t, clients, changed=None):
        trained.append((t, params.clone(), list(clients)))
        return train(pool, params, t, clients, changed)

    monkeypatch.setattr(Pool, "train", spy)
    play = federation.play()
    for t in range(1, 10):
        apart, params, shift = federation.warden.apart, federation.params, federation.warden.shift
        record = next(play)
        calls = [(sent, clients) for round, sent, clients in trained if round == t]
        assert sorted(c for _, clients in calls for c in clients) == sorted(record.client_ids)
        for sent, clients in calls:
            moved = set(clients) <= set(apart)
            assert torch.allclose(sent, params + shift if moved else params)
            assert moved or not set(clients) & set(apart)
        if apart:
            tested += 1
            held = {c: federation.losses[c] for c in ("5", "6", "7")}
            for juror in held:
                flat = params + shift if juror in apart else params
                federation.model.load_state_dict(federation.engine.layout.unflatten(flat))
                assert torch.allclose(federation.jurors.losses(federation.model, juror), held[juror])
    assert tested >= 3


def test_a_resumed_run_with_pairs_has_the_same_bits_and_its_replay_the_same_decisions(tmp_path):
    whole = simulate(paired_of(), tmp_path / "a")
    simulate(paired_of(rounds=7), tmp_path / "b")
    rest = simulate(paired_of(), tmp_path / "b", resume=1)
    assert torch.equal(whole.params, rest.params)
    with Ledger(tmp_path / "a") as ledger:
        records = ledger.records(1)
    scenario = paired_of()
    for one, other in zip(records, replay(records, scenario.guard.build(secret=scenario.seed)), strict=True):
        assert (one.weights > 0).tolist() == (other.weights > 0).tolist()
        np.testing.assert_allclose(one.watches[-1].scores, other.watches[-1].scores)


def test_label_flippers_gather_evidence_faster_with_two_models_than_with_coins():
    """Ten clients, two of which flip their labels; the same seed, rounds and jurors."""
    learning = {"lr": 0.1, "momentum": 0.9, "epochs": 2, "batch_size": 16, "workers": 1, "group": 10}

    def capital(paired):
        guard = {"preset": "auto", "jurors": ["7", "8", "9"], "paired": paired}
        model, data = {"name": "mlp", "hidden": [64]}, {"clients": 10}
        scenario = {"rounds": 30, "data": data, "model": model, "train": learning, "guard": guard, "attacks": FLIPPERS}
        federation = Federation(load_scenario(scenario))
        assert not [record.excluded for record in federation.play() if {*record.excluded} - {"0", "1"}]
        warden = federation.warden
        jury = [w.name for w in warden.watches].index("jury")
        return warden.watches[jury].history.against(warden.memory.histories[jury], ("0", "1"))[0]

    coins, two = capital(False), capital(True)
    assert two.min() > coins.max() + 0.5
