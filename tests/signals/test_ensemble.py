"""Several signals as one."""

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.registry import component, make
from fedwarden.models.layout import Layout
from fedwarden.signals.ensemble import CAP, FLOOR, Ensemble, height


def constant(values):
    return lambda cohort: np.asarray(values, dtype=float)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def cohort(cohort_of, n=5):
    net = model()
    params = Layout.of(net).flatten(net.state_dict())
    torch.manual_seed(1)
    return cohort_of(0.2 * torch.randn(n, len(params)) + 0.05, params=params)


def server(labels=True):
    torch.manual_seed(2)
    return fw.Server(model(), torch.randn(20, 4), torch.randint(3, (20,)) if labels else None)


def test_the_mean_of_the_heights(cohort_of):
    a, b = [1.0, 2.0, 3.0, 5.0, 2.0], [9.0, 0.0, -9.0, 0.0, 0.5]
    reading = Ensemble((constant(a), constant(b)))(cohort_of(np.eye(5)))
    # medians 2 and 0, median absolute deviations 1 and 0.5
    np.testing.assert_allclose(reading.values, [(-1 + 10) / 2, 0.0, (1 - 10) / 2, 1.5, 0.5])
    assert len(reading.parts) == 2  # though both are functions and have one name


def test_two_of_a_name_with_other_options(cohort_of):
    rows, counts = np.random.default_rng(0).normal(size=(9, 30)) * np.linspace(1, 2, 9)[:, None], np.arange(1.0, 10.0)
    given = [{"name": "relative_distance", "excuse": e} for e in (1.0, 5.0)]
    here = cohort_of(rows, counts=counts)
    want = [height(component("signal", g)(here), here.reference) for g in given]
    assert not np.allclose(*want)
    np.testing.assert_allclose(Ensemble(given)(here).values, np.mean(want, axis=0))


def test_what_is_not_a_number_does_not_pass(cohort_of):
    members = (constant([np.nan, 1.0, 2.0]), constant([5.0, 5.0, 6.0]))
    assert np.isnan(Ensemble(members)(cohort_of(np.eye(3))).values).tolist() == [True, False, False]
    assert np.isnan(height(np.full(3, np.nan), np.ones(3, bool))).all()


def test_clients_that_are_alike_are_not_told_apart():
    nearly = np.array([0.0, 1e-9, 2e-9, 3e-9, 1e-4])
    assert np.abs(height(nearly, np.ones(5, bool))).max() <= 1e-4 / FLOOR


def test_only_the_trusted_say_what_is_usual():
    values = np.array([1.0, 2.0, 3.0, 50.0, 60.0, 70.0])
    trusted = np.arange(6) < 3
    np.testing.assert_allclose(height(values, trusted), [-1, 0, 1, CAP, CAP, CAP])


def test_members_that_need_a_server_wait_for_one(cohort_of):
    here = cohort(cohort_of)
    plain = Ensemble()
    assert list(plain(here).parts) == ["relative_distance", "direction"]
    assert list(plain.equip(fw.Server())(here).parts) == ["relative_distance", "direction"]
    full = plain.equip(server())
    reading = full(here)
    assert list(reading.parts) == ["divergence", "relative_distance", "direction"]
    alone = make("signal", "divergence", relative=True).equip(server())(here).values
    np.testing.assert_allclose(reading.parts["divergence"], height(alone, here.reference))
    for name in ("relative_distance", "direction"):
        np.testing.assert_allclose(reading.parts[name], height(make("signal", name)(here), here.reference))
    np.testing.assert_allclose(reading.values, np.mean(list(reading.parts.values()), axis=0))


def test_nothing_that_can_be_measured(cohort_of):
    for members in ((), ("probe_loss",)):
        with pytest.raises(ValueError, match="ensemble needs a signal that it can measure"):
            Ensemble(members)(cohort(cohort_of))
