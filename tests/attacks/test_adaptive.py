"""The attacker that asks the guard goes to its threshold and not beyond."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.core.registry import make

HONEST = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])


def forge(accepts, **options):
    view = View(torch.ones(2, 2), HONEST, torch.zeros(2), None, 1, 5, accepts)
    return make("attack", "adaptive", **options).forge(view, np.random.default_rng(0))


def test_it_goes_as_far_as_the_guard_lets_it():
    asked = []

    def accepts(rows):
        asked.append(rows)
        return rows[:, 0].numpy() >= -3.0

    got = forge(accepts, steps=20)
    assert (got[:, 1] == 1).all()
    assert got[:, 0].tolist() == pytest.approx([-3.0, -3.0], abs=1e-4)
    assert len(asked) == 21
    assert all(rows.shape == (2, 2) for rows in asked)


def test_a_guard_that_objects_to_nothing_or_to_everything():
    always = forge(lambda rows: np.ones(2, bool), limit=4.0)
    assert always[:, 0].tolist() == [-7.0, -7.0]  # 1 - 4 times the mean of 2
    never = forge(lambda rows: np.zeros(2, bool))
    assert never[:, 0].tolist() == [1.0, 1.0]
    one = forge(lambda rows: np.array([True, False]))  # nobody is sacrificed
    assert one[:, 0].tolist() == [1.0, 1.0]
