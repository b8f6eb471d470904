"""Several signals as one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.layout import Layout
from fedwarden.core.registry import component, make
from fedwarden.signals.ensemble import EFFECTS, Ensemble, farthest


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


def test_every_member_in_its_own_unit(cohort_of):
    a, b = [1.0, 2.0, 3.0], [9.0, 0.0, -9.0]
    reading = Ensemble(((constant(a), 2.0), (constant(b), 10.0)))(cohort_of(np.eye(3)))
    np.testing.assert_allclose(reading.values, [0.9, 1.0, 1.5])
    assert len(reading.parts) == 2  # though both are functions and have one name
    np.testing.assert_allclose(farthest(reading.parts), reading.values)


def test_two_of_a_name_with_other_options(cohort_of):
    rows, counts = np.random.default_rng(0).normal(size=(9, 30)) * np.linspace(1, 2, 9)[:, None], np.arange(1.0, 10.0)
    given = [{"name": "relative_distance", "excuse": e} for e in (1.0, 5.0)]
    here = cohort_of(rows, counts=counts)
    reading = Ensemble(tuple((g, 1.0) for g in given))(here)
    want = [component("signal", g)(here) for g in given]
    assert not np.allclose(*want)
    np.testing.assert_allclose(reading.values, np.maximum(*want))


def test_what_is_not_a_number_does_not_pass():
    assert np.isnan(farthest({"a": np.array([np.nan, 1.0]), "b": np.array([5.0, 5.0])})).tolist() == [True, False]


def test_members_that_need_a_server_wait_for_one(cohort_of):
    here = cohort(cohort_of)
    plain = Ensemble()
    assert list(plain(here).parts) == ["relative_distance", "direction"]
    assert list(plain.equip(fw.Server())(here).parts) == ["relative_distance", "direction"]
    full = plain.equip(server())
    reading = full(here)
    assert list(reading.parts) == ["divergence", "relative_distance", "direction"]
    units = {"divergence": math.log(1.5), "relative_distance": math.log(1.5), "direction": 0.2}
    alone = make("signal", "divergence", relative=True).equip(server())(here).values
    np.testing.assert_allclose(reading.parts["divergence"], alone / units["divergence"])
    for name in ("relative_distance", "direction"):
        np.testing.assert_allclose(reading.parts[name], make("signal", name)(here) / units[name])
    np.testing.assert_allclose(reading.values, np.max([reading.parts[p] for p in units], axis=0))


def test_a_server_may_have_something_for_some(cohort_of):
    members = (("probe_loss", 1.0), ("divergence", 1.0), ("direction", 0.2))
    assert list(Ensemble(members).equip(server())(cohort(cohort_of)).parts) == ["probe_loss", "divergence", "direction"]
    assert list(Ensemble(members).equip(server(labels=False))(cohort(cohort_of)).parts) == ["divergence", "direction"]


def test_nothing_that_can_be_measured(cohort_of):
    for members in ((), (("probe_loss", 1.0),)):
        with pytest.raises(ValueError, match="ensemble needs a signal that it can measure"):
            Ensemble(members)(cohort(cohort_of))


def test_the_median_client_has_nothing_and_half_as_far_again_is_worth_a_word(cohort_of):
    assert [unit for _, unit in EFFECTS] == [math.log(1.5), math.log(1.5), 0.2]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(21, 5000))
    x[0] *= 1.5
    parts = Ensemble()(cohort_of(x, ids=[str(i) for i in range(21)])).parts
    # to the mean of a core of 11 others, on the scale of rows of unit variance
    far = math.sqrt((1.5**2 + 1 / 11) / (1 + 1 / 11))
    assert parts["relative_distance"][0] == pytest.approx(math.log(far) / math.log(1.5), abs=0.02)
    assert np.median(parts["relative_distance"]) == pytest.approx(0.0, abs=1e-9)
