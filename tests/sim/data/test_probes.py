"""Probes of a server that holds no samples: public ones, noise, and samples made from the global model."""

import pytest
import torch

import fedwarden as fw
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario


def federation(probe_from, **data):
    table = {
        "rounds": 2,
        "data": {"clients": 4, "probe": 20, "probe_from": probe_from, **data},
        "model": {"name": "mlp", "hidden": [8]},
        "train": {"workers": 1, "group": 2},
        "guard": {"preset": "watch"},
    }
    return Federation(load_scenario(table))


def probe_of(made):
    return next(w.signal.server.probe for w in made.warden.watches if w.name == "divergence")


def test_noise_is_like_the_inputs_and_the_same_every_round():
    made = federation("noise", probe=2000)
    probe, inputs = probe_of(made), made.world.data.x_test
    assert probe.shape == (2000, *inputs.shape[1:])
    assert float(probe.mean()) == pytest.approx(float(inputs.mean()), abs=0.01)
    assert float(probe.std()) == pytest.approx(float(inputs.std()), abs=0.01)
    assert not any("probe_loss" in w.name for w in made.warden.watches)  # there are no labels


def test_optimised_samples_follow_the_model_and_leave_it_alone():
    made = federation("optimised")
    before = made.params.clone()
    first = probe_of(made)(made.params)
    list(made.play())
    second = probe_of(made)(made.params)
    assert not torch.equal(first, second)
    assert torch.equal(probe_of(made)(before), first)
    made.model.load_state_dict(made.engine.layout.unflatten(made.params))
    classes = torch.arange(20) % 10
    sure = made.model(second).log_softmax(1)[torch.arange(20), classes].mean()
    unsure = made.model(probe_of(federation("noise"))).log_softmax(1)[torch.arange(20), classes].mean()
    assert sure > unsure  # than of the noise that they were made from


def test_a_public_set_must_have_the_shape():
    assert probe_of(federation("digits")).shape == (20, 1, 8, 8)
    with pytest.raises(fw.ConfigError, match="dataset"):
        federation("nothing")


@pytest.mark.parametrize("kind", ["noise", "optimised", "digits"])
def test_the_watch_sees_every_client_on_any_probe(kind):
    records = list(federation(kind).play())
    seen = [next(w for w in r.watches if w.name == "divergence").signal for r in records]
    assert all((s > 0).all() for s in seen)
