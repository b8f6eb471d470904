"""Forged updates that need no optimisation, each against its definition."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.core.registry import make

D = 4000


def view(k=3, previous=None, round=2):
    own = torch.randn(k, D, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, k + 1)[:, None]
    return View(own, None, torch.zeros(D), previous, round, 10)


def forge(name, seen=None, seed=0, **options):
    return make("attack", name, **options).forge(seen or view(), np.random.default_rng(seed))


def test_sign_flip_and_scaling():
    own = view().own
    assert torch.equal(forge("sign_flip"), -own)
    assert torch.equal(forge("sign_flip", scale=3.0), -3.0 * own)
    assert torch.equal(forge("scaling", factor=7.0), 7.0 * own)


def test_gaussian_is_as_long_as_the_own_update_or_as_told():
    own = view().own
    got = forge("gaussian")
    assert (got.norm(dim=1) / own.norm(dim=1)).tolist() == pytest.approx([1.0] * 3, rel=0.05)
    assert abs(torch.corrcoef(torch.stack([got[0], own[0]]))[0, 1]) < 0.08
    assert forge("gaussian", sigma=2.0).std(dim=1).tolist() == pytest.approx([2.0] * 3, rel=0.05)
    assert not forge("gaussian", sigma=0.0).any()


def test_a_free_rider_sends_what_it_was_sent():
    last = torch.linspace(-1, 1, D)
    got = forge("free_rider", view(previous=last), noise=0.1)
    off = (got - last).norm(dim=1) / last.norm()
    assert off.tolist() == pytest.approx([0.1] * 3, rel=0.05)
    assert not torch.equal(got[0], got[1])
    assert torch.equal(forge("free_rider", view(previous=last), noise=0.0), last.expand(3, -1))
    assert not forge("free_rider", view(previous=last), mode="zero").any()
    assert not forge("free_rider", view(round=1)).any()  # nothing was sent yet


def test_sybils_send_nearly_the_same():
    mean = view().own.mean(dim=0)
    got = forge("sybil", scale=2.0, noise=0.01)
    for row in got:
        assert float((row - 2 * mean).norm() / (2 * mean).norm()) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(forge("sybil", noise=0.0), -mean.expand(3, -1))


def test_a_copycat_sends_what_the_first_honest_client_trained():
    others = torch.randn(4, D, generator=torch.Generator().manual_seed(1))
    seen = View(view().own, others, torch.zeros(D), None, 2, 7)
    assert torch.equal(forge("copy", seen), others[:1].expand(3, -1))
    assert torch.equal(forge("copy", seen, scale=-2.0), -2.0 * others[:1].expand(3, -1))
    alone = View(view().own, others[:0], torch.zeros(D), None, 2, 3)
    assert torch.equal(forge("copy", alone), alone.own[:1].expand(3, -1))  # nobody honest is left to copy
