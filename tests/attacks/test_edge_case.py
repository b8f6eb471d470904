"""Rare inputs with the label of a target: which they are, and what is left alone."""

import math

import numpy as np
import pytest
import torch

from fedwarden.attacks import Examples
from fedwarden.attacks.edge_case import negative, tail
from fedwarden.core.registry import make

NOTHING = Examples(torch.zeros(0, 1, 4, 4), np.zeros(0, dtype=np.int64))


def pictures(n=24, classes=4):
    x = torch.rand(n, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    return Examples(x, np.arange(n) % classes)


def poison(own, classes=4, seed=0, **options):
    return make("attack", "edge_case", **options).poison(own, NOTHING, classes, np.random.default_rng(seed))


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
    x, y = poison(own, target=1, source=source, fraction=0.5)
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
    x, y = poison(own, target=0, source=3, rare="tail", fraction=0.5)
    assert torch.equal(x, own.x)
    moved = np.flatnonzero(y != own.y)
    threes = np.flatnonzero(own.y == 3)
    assert moved.tolist() == threes[tail(own.x[threes], own.y[threes], 0.5)].tolist()
    assert (y[moved] == 0).all()


def test_what_it_wants_of_the_model():
    test = pictures(12)
    x, y = make("attack", "edge_case", target=1, source=2).goal(test, 4)
    assert y.tolist() == [1, 1, 1]
    assert torch.equal(x, negative(test.x[[2, 6, 10]]))
    x, y = make("attack", "edge_case", target=1, rare="tail", fraction=1 / 3).goal(test, 4)
    assert y.tolist() == [1, 1, 1]  # one of three, of each of three classes
    assert all(any(torch.equal(a, b) for b in test.x[test.y != 1]) for a in x)


def test_classes_that_there_are_not_and_inputs_that_are_no_images():
    with pytest.raises(ValueError, match="target is one of 4 classes, numbered from 0; got 4"):
        poison(pictures(), target=4)
    with pytest.raises(ValueError, match="source is one of 4 classes, numbered from 0; got 9"):
        poison(pictures(), source=9)
    for rare in ("negative", "tail"):
        with pytest.raises(ValueError, match="needs images"):
            poison(Examples(torch.rand(4, 3), np.arange(4)), rare=rare)
