"""Wrong labels and tokens: as many as asked, moved as asked."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.attacks import Examples
from fedwarden.attacks.data import derangement, flip_labels, replace_tokens
from fedwarden.core.registry import make

NOTHING = Examples(torch.zeros(0, 1), np.zeros(0, dtype=np.int64))


def rng(seed=0):
    return np.random.default_rng(seed)


def labels(n, classes, seed=0):
    return rng(seed).integers(0, classes, size=n)


def flip(y, classes, seed=0, **options):
    own = Examples(torch.rand(len(y), 3), y)
    x, flipped = make("attack", "label_flip", **options).poison(own, NOTHING, classes, rng(seed))
    assert torch.equal(x, own.x)
    return flipped


@given(st.integers(2, 30), st.integers(0, 10**6))
def test_a_derangement_moves_everything(k, seed):
    order = derangement(k, rng(seed))
    assert sorted(order.tolist()) == list(range(k))
    assert (order != np.arange(k)).all()


@given(st.integers(0, 60), st.floats(0, 1), st.integers(0, 10**6))
def test_the_fraction_is_an_exact_count(n, fraction, seed):
    y = labels(n, 5, seed)
    before = y.copy()
    flipped = flip_labels(y, (np.arange(5) + 1) % 5, fraction, rng(seed))
    assert (flipped != y).sum() == round(fraction * n)
    moved = flipped != y
    assert (flipped[moved] == (y[moved] + 1) % 5).all()
    assert (y == before).all()


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.5, 1.0])
def test_label_flip_by_derangement(fraction):
    y = labels(50, 10)
    flipped = flip(y, 10, seed=3, fraction=fraction)
    assert (flipped != y).sum() == round(50 * fraction)
    mapping = {}
    for a, b in zip(y[flipped != y].tolist(), flipped[flipped != y].tolist(), strict=True):
        assert mapping.setdefault(a, b) == b  # one class always becomes the same other
    assert len(set(mapping.values())) == len(mapping)
    assert set(flipped.tolist()) <= set(range(10))


def test_label_flip_in_pairs():
    y = np.arange(6).repeat(2)
    assert flip(y, 6, mode="pairwise").tolist() == (5 - y).tolist()  # 0 with 5, 1 with 4, 2 with 3
    assert flip(np.arange(5), 5, mode="pairwise").tolist() == [4, 3, 2, 1, 0]  # the middle class has no partner


def test_label_flip_to_one_class():
    y = labels(40, 4)
    assert set(flip(y, 4, mode="constant", target=2).tolist()) == {2}
    half = flip(y, 4, mode="constant", target=2, fraction=0.5)
    assert (half[half != y] == 2).all()
    assert (half == 2).sum() >= 20


def test_label_flip_from_one_class_to_another():
    assert flip(np.array([0, 7, 3, 7, 1]), 10, mode="targeted", source=7, target=1).tolist() == [0, 1, 3, 1, 1]
    with pytest.raises(ValueError, match="source is one of 4 classes, numbered from 0; got 7"):
        flip(np.zeros(3, int), 4, mode="targeted", source=7, target=1)


def test_what_a_flip_wants_of_the_model():
    test = Examples(torch.arange(5.0)[:, None], np.array([0, 1, 2, 1, 2]))
    x, y = make("attack", "label_flip", mode="constant", target=1).goal(test, 3)
    assert (x[:, 0].tolist(), y.tolist()) == ([0, 2, 4], [1, 1, 1])  # who is of class 1 already proves nothing
    x, y = make("attack", "label_flip", mode="pairwise").goal(test, 3)
    assert (x[:, 0].tolist(), y.tolist()) == ([0, 2, 4], [2, 0, 0])  # the middle class stays
    x, y = make("attack", "label_flip", mode="targeted", source=2, target=0).goal(test, 3)
    assert (x[:, 0].tolist(), y.tolist()) == ([2, 4], [0, 0])
    assert make("attack", "label_flip").goal(test, 3) is None  # every attacker has its own derangement


@pytest.mark.parametrize("target", [-1, 4])
def test_a_class_that_there_is_not(target):
    """A label outside of the classes would end the run inside of the loss."""
    with pytest.raises(ValueError, match="target"):
        flip(np.zeros(3, int), 4, mode="constant", target=target)


@pytest.mark.parametrize("fraction", [0.0, 0.15, 0.75, 1.0])
def test_a_share_of_the_tokens_is_replaced_by_any_others(fraction):
    x = torch.full((100, 50), 1000)
    got = replace_tokens(x, fraction, vocabulary=20, rng=rng())
    new = got[got != 1000]
    assert len(new) / 5000 == pytest.approx(fraction, abs=0.03)  # four standard errors
    assert (x == 1000).all()
    if fraction:
        counts = np.bincount(new.numpy(), minlength=20)
        assert len(counts) == 20
        assert ((counts - len(new) / 20) ** 2 / (len(new) / 20)).sum() < 43.8  # chi squared, 19 degrees, .999


def test_the_vocabulary_is_as_large_as_the_largest_token_seen():
    own = Examples(torch.zeros(200, 10, dtype=torch.int32), np.arange(200) % 2)
    pool = Examples(torch.full((1, 10), 6, dtype=torch.int32), np.zeros(1, dtype=np.int64))
    x, y = make("attack", "token_replacement", fraction=1.0).poison(own, pool, 2, rng())
    assert x.unique().tolist() == list(range(7))
    assert x.dtype == torch.int32
    assert (y == own.y).all()
    x, _ = make("attack", "token_replacement", fraction=1.0, vocabulary=3).poison(own, pool, 2, rng())
    assert x.unique().tolist() == [0, 1, 2]


def test_numbers_are_no_tokens():
    with pytest.raises(ValueError, match=r"needs token ids, which are integers; got inputs of torch\.float32"):
        replace_tokens(torch.rand(3, 3), 0.5, 10, rng())
