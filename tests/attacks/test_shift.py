"""A shift has the asked ratio and size, and exchanges no more than it must."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.attacks import Examples
from fedwarden.attacks.shift import Shortage, refresh
from fedwarden.core.registry import make
from fedwarden_research.attacks.shift import exchange


def rng(seed=0):
    return np.random.default_rng(seed)


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.integers(0, 10**6))
def test_ratio_size_and_number_of_new_samples(n, before, even, share, seed):
    y = np.where(np.arange(n) < round(before * n), 2, 5)
    pool = np.concatenate([np.full(60, 4), np.full(60, 7)])
    found = exchange(y, pool, even, share, rng(seed))
    new = found >= 0
    after = np.where(new, pool[found], y)
    assert (after % 2 == 0).sum() == round(even * n)
    must = abs(int((y % 2 == 0).sum()) - round(even * n))
    assert new.sum() == max(must, round(share * n))
    assert len(set(found[new].tolist())) == new.sum()  # no sample twice
    assert (after[new] % 2 != y[new] % 2).sum() == must  # beyond that, each gave way to one of its own kind


def test_a_shifted_client_holds_the_samples_of_the_pool():
    own = Examples(torch.arange(10.0)[:, None], np.arange(10) % 2)
    pool = Examples(100 + torch.arange(40.0)[:, None], np.arange(40) % 4)
    x, y = make("attack", "label_shift", even=0.8, exchange=0.0).poison(own, pool, 4, rng())
    new = x[:, 0] >= 100
    assert int(new.sum()) == 3  # from 5 even ones to 8
    assert torch.equal(x[~new], own.x[~new])
    assert (y == np.where(new.numpy(), (x[:, 0].numpy() - 100) % 4, own.y)).all()  # labels came with their inputs
    assert (y % 2 == 0).sum() == 8
    x, y = make("attack", "label_shift", even=0.5).poison(own, pool, 4, rng())
    assert (x >= 100).all()  # fresh samples of the same ratio: the null of an audit
    assert (y % 2 == 0).sum() == 5


def test_too_few_samples_that_no_client_holds():
    message = "needs 5 samples of odd classes that no client holds; its part of the reserve has 1; raise data.reserve"
    with pytest.raises(ValueError, match=message):
        exchange(np.zeros(10, dtype=np.int64), np.array([0, 1, 2]), 0.5, 0.0, rng())


@given(st.integers(1, 60), st.floats(0, 1), st.integers(0, 10**6))
def test_fresh_samples_are_as_many_as_asked_and_of_classes_that_were_there(n, share, seed):
    y = np.arange(n) % 3
    pool = rng(seed).permutation(np.repeat(np.arange(4), 60))
    found = refresh(y, pool, share, rng(seed))
    new = found >= 0
    assert new.sum() == round(share * n)
    assert set(pool[found[new]]) <= set(y)
    assert len(set(found[new].tolist())) == new.sum()


def test_fresh_samples_are_those_of_the_pool():
    own = Examples(torch.zeros(4, 2), np.array([1, 1, 1, 1]))
    pool = Examples(torch.arange(1.0, 13.0).reshape(6, 2), np.array([1, 1, 0, 0, 1, 1]))
    x, y = make("attack", "fresh_samples").poison(own, pool, 2, rng())
    assert np.array_equal(y, own.y)
    assert sorted(x[:, 0].tolist()) == [1.0, 3.0, 9.0, 11.0]
    half = make("attack", "fresh_samples", exchange=0.5).poison(own, pool, 2, rng())
    assert int((half.x != 0).all(dim=1).sum()) == 2


def test_fresh_samples_need_a_stock_of_each_class():
    own = Examples(torch.zeros(2, 1), np.array([3, 3]))
    with pytest.raises(Shortage, match=r"needs 2 samples of class 3 .* has 1; raise data.reserve") as caught:
        make("attack", "fresh_samples").poison(own, Examples(torch.ones(1, 1), np.array([3])), 4, rng())
    assert caught.value.told(["gear", "bolt", "cog", "nut"]).startswith("needs 2 samples of class nut that")
