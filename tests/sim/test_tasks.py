"""Tasks: classification as before, and regression from end to end."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error
from torch import nn

from fedwarden.core.errors import ConfigError
from fedwarden.sim.branches import ObserverSettings, rehearse
from fedwarden.sim.evaluation import measure, questions
from fedwarden.sim.federation import Federation, simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.sim.tasks import Classification

CPU = torch.device("cpu")


def patients(**changes):
    return load_scenario(
        {
            "rounds": 6,
            "task": "regression",
            "data": {"dataset": "diabetes", "clients": 6, "reserve": 40},
            "model": {"name": "mlp", "hidden": [16]},
            "train": {"lr": 0.02, "epochs": 2, "batch_size": 8, "workers": 1},
            "guard": {"preset": "none"},
            **changes,
        }
    )


@pytest.mark.parametrize("n", [3, 20, 600])
def test_classification_is_accuracy_and_mean_cross_entropy_without_dropout(n):
    torch.manual_seed(0)
    x, y = torch.randn(n, 5), torch.arange(n) % 4
    model = nn.Sequential(nn.BatchNorm1d(5), nn.Dropout(0.9), nn.Linear(5, 4)).train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = measure(Classification(), model, questions(Classification(), x, y, torch.Generator(), CPU))
    right, loss = 0, 0.0
    for features, label in zip(x, y.tolist(), strict=True):
        logits = model.eval()(features[None])[0].tolist()
        right += max(range(4), key=logits.__getitem__) == label
        loss += math.log(sum(map(math.exp, logits))) - logits[label]
    assert list(found) == ["accuracy", "loss"]
    assert (found["accuracy"], found["loss"]) == pytest.approx((right / n, loss / n), rel=1e-5)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_a_federation_learns_numbers(tmp_path, one_thread):
    result = simulate(patients(), tmp_path)
    data = (federation := Federation(patients())).world.data
    federation.model.load_state_dict(federation.engine.layout.unflatten(result.params))
    with torch.no_grad():
        said = federation.model(data.x_test)[:, 0].numpy()
    metrics = result.records[-1].metrics
    assert metrics["loss"] == pytest.approx(mean_squared_error(data.y_test, said), rel=1e-5)
    assert metrics["absolute_error"] == pytest.approx(mean_absolute_error(data.y_test, said), rel=1e-5)
    assert metrics["loss"] < float(data.y_test.var()) * 0.8  # linear regression explains about half of it
    assert "accuracy" not in metrics
    assert result.summary["accuracy"] is None


def test_a_label_that_is_a_number_is_mirrored(tmp_path, one_thread):
    flipped = patients(attacks=[{"name": "label_flip", "clients": [2]}])
    world = Federation(flipped).world
    clean = Federation(patients()).world
    mine, theirs = world.y[world.rows["2"]], clean.y[clean.rows["2"]]
    np.testing.assert_allclose(np.sort(mine), np.sort(theirs.min() + theirs.max() - theirs), rtol=1e-5)
    harm = simulate(patients(guard={"preset": "watch"}, attacks=flipped.model_dump()["attacks"]), tmp_path)
    worse = {w.name: w.signal for w in harm.records[-1].watches}["probe_loss"]
    assert worse.argmax() == 2


def test_an_audit_is_of_classes():
    with pytest.raises(
        ConfigError, match="an audit compares what is told of classes; the scenario's task is 'regression'"
    ):
        rehearse(patients(), 2, {}, ObserverSettings())
