"""A distributed backdoor: bars where the paper has them, shared out among the attackers."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import Examples
from fedwarden.attacks.dba import draw_bars
from fedwarden.core.registry import make
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import load_scenario

NOTHING = Examples(torch.zeros(0, 1, 8, 8), np.zeros(0, dtype=np.int64))


def test_the_bars_on_mnist_are_the_papers():
    """Its configuration lists these pixels for the four attackers: row, column."""
    pixels = [[(0, c) for c in range(4)], [(0, c) for c in range(6, 10)]]
    pixels += [[(3, c) for c in range(4)], [(3, c) for c in range(6, 10)]]
    for bar, wanted in enumerate(pixels):
        drawn = draw_bars(torch.zeros(2, 1, 28, 28), [bar], size=4, gap=2, value=1.0)
        assert [tuple(p) for p in drawn[1, 0].nonzero().tolist()] == wanted


@pytest.mark.parametrize(
    ("k", "dealt"),
    [
        (1, [(0, 1, 2, 3)]),
        (2, [(0, 2), (1, 3)]),
        (3, [(0, 3), (1,), (2,)]),
        (4, [(0,), (1,), (2,), (3,)]),
        (6, [(0,), (1,), (2,), (3,), (0,), (1,)]),
    ],
)
def test_the_bars_are_dealt_out(k, dealt):
    assert [make("attack", "dba").part(i, k).bars for i in range(k)] == dealt


def test_an_attacker_draws_its_part_on_a_fraction():
    own = Examples(torch.full((10, 3, 8, 8), 0.5), np.arange(10) % 5)
    attack = make("attack", "dba", target=3, fraction=0.4, value=2.0).part(1, 4)
    x, y = attack.poison(own, NOTHING, 5, np.random.default_rng(0))
    drawn = (x[:, :, 0, 4:7] == 2.0).all(dim=2).all(dim=1).numpy()
    assert drawn.sum() == 4
    assert (y[drawn] == 3).all()
    assert (y[~drawn] == own.y[~drawn]).all()
    assert int((x == 2.0).sum()) == 4 * 3 * 3  # nothing else is drawn
    assert (own.x == 0.5).all()


def test_success_is_measured_with_the_whole_trigger():
    test = Examples(torch.zeros(6, 1, 8, 8), np.array([0, 1, 2, 0, 1, 2]))
    x, y = make("attack", "dba", target=1).part(2, 4).goal(test, 3)
    assert y.tolist() == [1] * 4
    assert torch.equal(x, draw_bars(torch.zeros(4, 1, 8, 8), range(4), size=3, gap=1, value=1.0))


def test_in_the_simulator_each_attacker_has_another_bar():
    attack = {"name": "dba", "clients": [1, 4, 5, 7], "value": 5.0, "fraction": 1.0}
    world = build_world(load_scenario({"rounds": 1, "data": {"clients": 8}, "attacks": [attack]}))
    for bar, client in enumerate(("1", "4", "5", "7")):
        x = world.x[world.rows[client]]
        alone = draw_bars(torch.zeros(1, 1, 8, 8), [bar], size=3, gap=1, value=5.0)
        assert torch.equal((x == 5.0).all(dim=0), alone[0] == 5.0)
        assert (world.y[world.rows[client]] == 0).all()
    assert not (world.x[world.rows["0"]] == 5.0).any()


def test_a_trigger_that_does_not_fit_and_a_class_that_there_is_not():
    own = Examples(torch.zeros(2, 1, 8, 8), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match=r"a trigger of 4 x 10 pixels does not fit into images of \(8, 8\)"):
        make("attack", "dba", size=4, gap=2).poison(own, NOTHING, 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="target is one of 4 classes, numbered from 0; got 4"):
        make("attack", "dba", target=4).poison(own, NOTHING, 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="needs images"):
        make("attack", "dba").poison(Examples(torch.zeros(2, 5), own.y), NOTHING, 4, np.random.default_rng(0))
