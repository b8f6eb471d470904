"""ALIE, IPM, Min-Max and Min-Sum against the papers' conditions, by plain loops."""

import math
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.attacks import View
from fedwarden.attacks.optimised import alie, alie_z, ipm, min_max, min_sum, perturbation
from fedwarden.core.registry import make

DIRECTIONS = ("unit", "std", "sign")


def updates(n=7, d=5, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(0.3, 1.0, size=(n, d)))


@pytest.mark.parametrize(("n", "f"), [(50, 24), (51, 24), (50, 20), (25, 11), (10, 4), (11, 5), (20, 4), (3, 1)])
def test_z_leaves_enough_honest_clients_further_out(n, f):
    """The attackers and the s honest ones beyond z are a majority; the share of honest ones within z is Phi(z)."""
    supporters = math.floor(n / 2 + 1) - f
    assert f + supporters > n / 2
    assert NormalDist().cdf(alie_z(n, f)) == pytest.approx((n - f - supporters) / (n - f))


@pytest.mark.parametrize(("n", "f"), [(2, 1), (10, 6), (10, 0), (0, 0)])
def test_z_needs_a_minority(n, f):
    with pytest.raises(ValueError, match=f"n >= 3 clients and 0 < f <= n / 2 attackers; got n={n}, f={f}"):
        alie_z(n, f)


def test_alie_coordinate_by_coordinate():
    x = updates()
    got = alie(x, 1.3)
    for k in range(x.shape[1]):
        column = x[:, k].tolist()
        mean = sum(column) / len(column)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in column) / len(column))
        assert float(got[k]) == pytest.approx(mean - 1.3 * deviation)


def test_ipm_is_against_the_mean():
    x = updates()
    for k in range(x.shape[1]):
        assert float(ipm(x, 0.2)[k]) == pytest.approx(-0.2 * sum(x[:, k].tolist()) / len(x))
    assert float(ipm(x, 0.2) @ x.mean(dim=0)) < 0


def test_directions():
    x = updates()
    mean, n = x.mean(dim=0), len(x)
    assert float(perturbation(x, "unit").norm()) == pytest.approx(1.0)
    assert float(perturbation(x, "unit") @ mean) == pytest.approx(-float(mean.norm()))
    assert perturbation(x, "sign").tolist() == [-math.copysign(1, m) for m in mean.tolist()]
    spread = [math.sqrt(sum((v - float(m)) ** 2 for v in x[:, k].tolist()) / n) for k, m in enumerate(mean)]
    assert perturbation(x, "std").tolist() == pytest.approx([-s for s in spread])


def distance(a, b):
    return math.dist(a.tolist(), b.tolist())


def furthest(u, x):
    return max(distance(u, row) for row in x)


def squares(u, x):
    return sum(distance(u, row) ** 2 for row in x)


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 9))
def test_min_max_is_on_the_edge_of_its_condition(direction, seed, n):
    x = updates(n, seed=seed)
    p = perturbation(x, direction)
    u = min_max(x, p)
    limit = max(distance(a, b) for a in x for b in x)
    assert furthest(u, x) == pytest.approx(limit)
    assert furthest(u + 1e-3 * p, x) > limit  # and no further along p
    gamma = float((u - x.mean(dim=0)) @ p / (p @ p))
    assert gamma > 0
    torch.testing.assert_close(u, x.mean(dim=0) + gamma * p)


@pytest.mark.parametrize("direction", DIRECTIONS)
@given(seed=st.integers(0, 10**6), n=st.integers(2, 9))
def test_min_sum_is_on_the_edge_of_its_condition(direction, seed, n):
    x = updates(n, seed=seed)
    p = perturbation(x, direction)
    u = min_sum(x, p)
    limit = max(squares(a, x) for a in x)
    assert squares(u, x) == pytest.approx(limit)
    assert squares(u + 1e-3 * p, x) > limit
    torch.testing.assert_close(u, x.mean(dim=0) + float((u - x.mean(dim=0)) @ p / (p @ p)) * p)


@pytest.mark.parametrize("attack", [min_max, min_sum])
def test_where_nobody_differs_there_is_no_room(attack):
    same = torch.ones(4, 3)
    for direction in DIRECTIONS:
        assert torch.equal(attack(same, perturbation(same, direction)), torch.ones(3))
    nothing = torch.zeros(4, 3)
    assert torch.equal(attack(nothing, perturbation(nothing, "unit")), torch.zeros(3))


def test_nearly_equal_updates_of_a_large_model():
    """Weights that agree to 3e-5 around 1: distances by differences, not by products."""
    x = (1 + 3e-5 * updates(6, 1000)).float()
    u = min_max(x, perturbation(x, "std")).double()
    limit = max(distance(a, b) for a in x.double() for b in x.double())
    assert furthest(u, x.double()) == pytest.approx(limit, rel=1e-2)


@pytest.mark.parametrize("name", ["alie", "ipm", "min_max", "min_sum"])
def test_who_is_gone_by(name):
    own, others = updates(3, seed=1), updates(6, seed=2)
    attack = make("attack", name)

    def forge(seen):
        return attack.forge(View(own, seen, torch.zeros(5), None, 1, 9), np.random.default_rng(0))

    assert torch.equal(forge(None), forge(own))  # who sees nobody takes its own for what honest clients send
    assert not torch.equal(forge(others), forge(None))
    assert torch.equal(forge(others[:0]), forge(None))
    assert (forge(others) == forge(others)[0]).all()  # all send the same


def test_alie_takes_z_from_the_numbers_or_the_option():
    own = updates(4)
    seen = View(own, None, torch.zeros(5), None, 1, 10)
    rng = np.random.default_rng(0)
    assert torch.equal(make("attack", "alie").forge(seen, rng)[0], alie(own, alie_z(10, 4)))
    assert torch.equal(make("attack", "alie", z=1.5).forge(seen, rng)[0], alie(own, 1.5))
