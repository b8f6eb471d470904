"""Backdoors: triggers that are where they were asked for, bars shared out, rare inputs, and what is left alone."""

import math

import numpy as np
import pytest
import torch

from fedwarden.attacks import Examples
from fedwarden.attacks.backdoors import draw_bars, negative, stamp, tail
from fedwarden.core.registry import make
from fedwarden.sim.data.world import build_world
from fedwarden.sim.scenario import load_scenario

NOTHING = Examples(torch.zeros(0, 1, 8, 8), np.zeros(0, dtype=np.int64))


def pictures(n=24, c=1, h=8, w=8):
    return Examples(torch.rand(n, c, h, w, generator=torch.Generator().manual_seed(1)), np.arange(n) % 4)


def poison(name, own, classes=4, **options):
    return make("attack", name, **options).poison(own, NOTHING, classes, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("corner", "where"), [("top-left", (0, 0)), ("top-right", (0, 6)), ("bottom-left", (5, 0)), ("centre", (2, 3))]
)
def test_a_stamp_is_in_its_corner(corner, where):
    x = torch.full((2, 3, 7, 8), 0.25)
    got = stamp(x, 2, corner, 1.0)
    i, j = where
    assert (got[:, :, i : i + 2, j : j + 2] == 1.0).all()
    assert float(got.sum()) == float(x.sum()) + 2 * 3 * 4 * 0.75
    assert (x == 0.25).all()


@pytest.mark.parametrize("fraction", [0.0, 0.3, 1.0])
def test_a_backdoor_changes_a_fraction_and_nothing_else(fraction):
    x, y = pictures(n=40).x / 2, np.arange(40) % 4
    got, labels = poison("backdoor", Examples(x, y), target=3, fraction=fraction, size=2)
    stamped = (got[:, 0, -2:, -2:] == 1.0).all(dim=2).all(dim=1).numpy()
    assert stamped.sum() == round(40 * fraction)
    assert (labels[stamped] == 3).all()
    assert (labels[~stamped] == y[~stamped]).all()
    assert torch.equal(got[~stamped], x[~stamped])
    assert torch.equal(got[:, :, :-2], x[:, :, :-2])


def test_what_a_backdoor_wants_of_the_model():
    test = Examples(pictures(n=6).x, np.array([0, 1, 2, 0, 1, 2]))
    x, y = make("attack", "backdoor", target=1, corner="top-left").goal(test, 3)
    assert y.tolist() == [1, 1, 1, 1]
    assert torch.equal(x, stamp(test.x[[0, 2, 3, 5]], 3, "top-left", 1.0))


def test_a_patch_that_does_not_fit_and_a_class_that_there_is_not():
    with pytest.raises(ValueError, match=r"a trigger of 9 x 9 pixels does not fit into images of \(8, 8\)"):
        poison("backdoor", pictures(), size=9)
    with pytest.raises(ValueError, match="target is one of 4 classes, numbered from 0; got 4"):
        poison("backdoor", pictures(), target=4)


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
        poison("dba", own, size=4, gap=2)
    with pytest.raises(ValueError, match="target is one of 4 classes, numbered from 0; got 4"):
        poison("dba", own, target=4)
    with pytest.raises(ValueError, match="needs images"):
        poison("dba", Examples(torch.zeros(2, 5), own.y))


def test_a_negative_is_undone_by_another_and_keeps_its_range():
    x = 3 * pictures().x - 1
    turned = negative(x)
    torch.testing.assert_close(negative(turned), x)
    for a, b in zip(turned, x, strict=True):
        assert (float(a.min()), float(a.max())) == pytest.approx((float(b.min()), float(b.max())))
        assert int(a.argmax()) == int(b.argmin())


@pytest.mark.parametrize(("source", "rows"), [(None, 18), (2, 6)])
def test_negatives_of_the_source_are_labelled_as_the_target(source, rows):
    own = pictures()
    x, y = poison("edge_case", own, target=1, source=source, fraction=0.5)
    changed = [not torch.equal(a, b) for a, b in zip(x, own.x, strict=True)]
    assert sum(changed) == rows / 2
    for i, moved in enumerate(changed):
        assert int(y[i]) == (1 if moved else own.y[i])
        if moved:
            assert own.y[i] == source if source is not None else own.y[i] != 1
            assert torch.equal(x[i], negative(own.x[i : i + 1])[0])


def test_the_tail_is_furthest_from_the_mean_of_its_class():
    own = pictures()
    found = tail(own.x, own.y, share=1 / 3)
    for label in range(4):
        rows = [i for i in range(24) if own.y[i] == label]
        centre = own.x[rows].mean(dim=0).flatten().tolist()
        far = sorted(rows, key=lambda i: -math.dist(own.x[i].flatten().tolist(), centre))
        assert sorted(far[:2]) == [i for i in found.tolist() if own.y[i] == label]


def test_a_tail_keeps_its_pixels_and_loses_its_labels():
    own = pictures()
    x, y = poison("edge_case", own, target=0, source=3, rare="tail", fraction=0.5)
    assert torch.equal(x, own.x)
    moved = np.flatnonzero(y != own.y)
    threes = np.flatnonzero(own.y == 3)
    assert moved.tolist() == threes[tail(own.x[threes], own.y[threes], 0.5)].tolist()
    assert (y[moved] == 0).all()


def test_what_an_edge_case_wants_of_the_model():
    test = pictures(12)
    x, y = make("attack", "edge_case", target=1, source=2).goal(test, 4)
    assert y.tolist() == [1, 1, 1]
    assert torch.equal(x, negative(test.x[[2, 6, 10]]))
    x, y = make("attack", "edge_case", target=1, rare="tail", fraction=1 / 3).goal(test, 4)
    assert y.tolist() == [1, 1, 1]  # one of three, of each of three classes
    assert all(any(torch.equal(a, b) for b in test.x[test.y != 1]) for a in x)


def test_classes_that_there_are_not_and_inputs_that_are_no_images():
    with pytest.raises(ValueError, match="target is one of 4 classes, numbered from 0; got 4"):
        poison("edge_case", pictures(), target=4)
    with pytest.raises(ValueError, match="source is one of 4 classes, numbered from 0; got 9"):
        poison("edge_case", pictures(), source=9)
    for rare in ("negative", "tail"):
        with pytest.raises(ValueError, match="needs images"):
            poison("edge_case", Examples(torch.rand(4, 3), np.arange(4)), rare=rare)
