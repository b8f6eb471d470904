"""FLTrust with roots of every kind, and what it says where there is none."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.aggregators.trust import FLTrust, fltrust
from fedwarden.core.errors import ConfigError
from fedwarden_research.conformance import golden

ROOT = np.array([1.0, -2.0, 0.5, 3.0])


def rows(n=6, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 4)) + ROOT / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_root_that_is_a_vector_of_any_shape(dtype, cohort_of):
    x = rows()
    result = FLTrust(torch.tensor(ROOT, dtype=dtype).reshape(2, 2)).step({}, cohort_of(x), np.ones(6))[1]
    np.testing.assert_allclose(result.update, golden.fltrust(x, ROOT), atol=1e-6)
    assert result.weights is None


def test_a_root_that_is_trained_from_the_model_of_every_round(cohort_of):
    asked = []

    def train(params, round):
        asked.append((params.tolist(), round))
        return params * round

    x, rule = rows(), FLTrust(train)
    for t in (1, 2):
        params = torch.tensor(ROOT) + t
        result = rule.step({}, cohort_of(x, params=params, round=t), np.ones(6))[1]
        np.testing.assert_allclose(result.update, golden.fltrust(x, t * (ROOT + t)), atol=1e-9)
    assert asked == [((ROOT + t).tolist(), t) for t in (1, 2)]
    with pytest.raises(ValueError, match="needs the cohort's params to train"):
        rule.step({}, cohort_of(x), np.ones(6))


def test_the_server_of_a_warden_trains_it(cohort_of):
    x, server = rows(), fw.Server(root=lambda params, round: torch.tensor(ROOT) * round)
    warden = fw.Warden(aggregator="fltrust")
    assert warden.equip(server) is warden
    outcome = warden.step(cohort_of(x, params=torch.zeros(4), round=3))
    np.testing.assert_allclose(outcome.update, golden.fltrust(x, 3 * ROOT), atol=1e-9)


def test_a_root_of_ones_own_goes_before_the_servers(cohort_of):
    x, server = rows(), fw.Server(root=lambda params, round: -torch.tensor(ROOT))
    warden = fw.Warden(aggregator=FLTrust(torch.tensor(ROOT))).equip(server)
    np.testing.assert_allclose(warden.step(cohort_of(x)).update, golden.fltrust(x, ROOT), atol=1e-9)
    assert fw.Warden(aggregator=FLTrust(torch.tensor(ROOT))).equip(fw.Server()).aggregator.root is not None


def test_a_server_without_data(cohort_of):
    with pytest.raises(ConfigError, match=r"fltrust needs a server with data of its own: .*data\.reserve"):
        fw.Warden(aggregator="fltrust").equip(fw.Server())
    with pytest.raises(ValueError, match="fltrust needs the server's own update: give root"):
        FLTrust().step({}, cohort_of(rows()), np.ones(6))
    outcome = fw.Warden(aggregator="fltrust").step(cohort_of(rows()))
    assert "fltrust needs the server's own update" in str(outcome.record.notes[0])
    assert outcome.update.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("root", "text"),
    [
        (np.ones(3), "a root update of d=4 entries; got 3"),
        (np.zeros(4), "finite length above 0; got 0.0"),
        (np.array([1.0, np.nan, 0.0, 0.0]), "finite length above 0; got nan"),
        (np.array([1.0, np.inf, 0.0, 0.0]), "finite length above 0; got inf"),
    ],
)
def test_roots_that_are_none(root, text):
    with pytest.raises(ValueError, match=text):
        fw.aggregate("fltrust", rows(), root=root)


def test_who_is_left_out_and_who_points_away_do_not_count(cohort_of):
    x = np.array([ROOT, 9 * ROOT, -ROOT, [5.0, 1.0, 1.0, -1.0]])
    rule = FLTrust(torch.tensor(ROOT))
    np.testing.assert_allclose(rule.step({}, cohort_of(x), np.array([1.0, 1, 1, 0]))[1].update, ROOT, atol=1e-12)
    away = rule.step({}, cohort_of(x), np.array([0.0, 0, 1, 0]))[1].update
    assert away.tolist() == [0.0] * 4
    zero = fltrust(fw.Updates.of(np.vstack([np.zeros(4), ROOT])), torch.tensor(ROOT))
    np.testing.assert_allclose(zero.update, ROOT, atol=1e-12)


def test_running_statistics_are_averaged_and_not_stretched(cohort_of):
    """Three short updates and a long root: their variances fall from 1 to 0.1, and must not fall below 0."""
    x = np.array([[0.1, 0.0, -0.9, 4.0], [0.1, 0.0, -0.9, 8.0], [-0.1, 0.0, 50.0, 1000.0]])
    updates = fw.Updates.of(x, measured=[(0, 2)])
    result = FLTrust(torch.tensor([1.0, 0.0, 77.0, 77.0])).step({}, cohort_of(updates), np.ones(3))[1]
    np.testing.assert_allclose(result.update, [1.0, 0.0, -0.9, 6.0], atol=1e-12)


def test_an_update_that_is_hardly_one_is_not_stretched_beyond_all_numbers():
    """One of five moves one entry by 1e-42: brought to the root's length in float32 it was infinite."""
    rows = np.ones((5, 21), np.float32)
    rows[4], rows[4, -1] = 0.0, 1e-42
    update = fltrust(fw.Updates.of(torch.from_numpy(rows)), torch.ones(21)).update
    np.testing.assert_allclose(update, 1.0, rtol=1e-6)
