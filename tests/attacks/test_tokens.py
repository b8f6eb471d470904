"""Replaced tokens: as many as asked, from the whole vocabulary."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import Examples
from fedwarden.attacks.tokens import replace_tokens
from fedwarden.core.registry import make


def rng(seed=0):
    return np.random.default_rng(seed)


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
