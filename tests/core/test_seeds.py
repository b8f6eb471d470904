"""One root seed, and generators that do not share their numbers."""

import itertools

import torch

from fedwarden.core.generators import torch_rng
from fedwarden.core.seeds import numpy_rng, seed_of


def test_every_argument_matters():
    keys = list(itertools.product((0, 1, -1), ("batches", "attack"), (0, 1, 11), ("", "1", "a")))
    assert len({seed_of(*key) for key in keys}) == len(keys)
    assert seed_of(1, "a", 11) != seed_of(1, "a", 1, "1") != seed_of(11, "a", 1)


def test_a_seed_is_the_same_on_every_machine():
    digest = 0xA234CCEBD16AE057  # printf '7\0batches\0003\0x' | b2sum -l 64
    assert seed_of(7, "batches", 3, "x") == digest >> 1


def test_generators_repeat_and_do_not_touch_the_global_ones():
    before = torch.random.get_rng_state()
    assert (
        numpy_rng(1, "a", 2, "c").random() == numpy_rng(1, "a", 2, "c").random() != numpy_rng(1, "a", 3, "c").random()
    )
    a, b, c = (torch.rand(5, generator=torch_rng(1, "a", t)) for t in (2, 2, 3))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(before, torch.random.get_rng_state())
