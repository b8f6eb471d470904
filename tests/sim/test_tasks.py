"""Tasks: classification as before, and regression from end to end."""

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_squared_error

from fedwarden.core.errors import ConfigError
from fedwarden.sim.branches import ObserverSettings, rehearse
from fedwarden.sim.evaluation import evaluate, measure, questions
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


def test_classification_is_measured_as_ever():
    model = torch.nn.Linear(4, 3)
    x, y = torch.randn(1100, 4), torch.randint(3, (1100,))
    found = measure(Classification(), model, questions(Classification(), x, y, torch.Generator(), CPU))
    assert list(found) == ["accuracy", "loss"]
    assert (found["accuracy"], found["loss"]) == pytest.approx(evaluate(model, x, y), rel=1e-6)


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
