"""Triggers: found where they were planted, and unlearned without loss, by closed forms and on a trained network."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedwarden.models.triggers import Triggers, search, turned, unlearn, unlearned


@pytest.fixture(scope="module")
def planted():
    """Ten templates on 12 x 12 pixels, one of which a bright first pixel outweighs."""
    rng = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(144, 10)).eval()
    with torch.no_grad():
        weight = 0.5 * torch.randn(10, 144, generator=rng)
        weight[:, 0] = 0.0
        weight[3, 0] = 20.0
        model[1].weight.copy_(weight)
        model[1].bias.zero_()
    x = torch.rand(64, 1, 12, 12, generator=rng)
    x[:, :, 0, 0] = 0.0
    return model, x


def test_the_search_finds_the_pixel_that_decides(planted):
    model, x = planted
    found = search(model, x, 10, torch.Generator().manual_seed(1))
    assert found.labels.tolist() == list(range(10))
    assert int(found.sizes.argmin()) == 3
    assert float(found.rates[3]) > 0.9
    assert int(found.masks[3].flatten().argmax()) == 0
    assert torch.equal(found.rates, turned(model, x, found))


def test_the_same_seed_gives_the_same_search_whatever_was_drawn_before(planted):
    model, x = planted
    first = search(model, x, 10, torch.Generator().manual_seed(2))
    torch.rand(7)
    again = search(model, x, 10, torch.Generator().manual_seed(2))
    assert torch.equal(first.masks, again.masks)


def test_unlearning_takes_the_pixel_away_and_leaves_clean_images_alone(planted):
    model, x = planted
    mask, pattern = torch.zeros(1, 1, 12, 12), torch.ones(1, 1, 12, 12)
    mask[..., 0, 0] = 1.0
    mark = Triggers(mask, pattern, torch.ones(1), torch.tensor([3]))
    state = dict(model.state_dict())
    before = functional_call(model, state, (x,))
    new = unlearn(model, state, x, mark)
    after = functional_call(model, new, (x,))
    assert float(turned(lambda images: functional_call(model, state, (images,)), x, mark)) > 0.9
    assert float(turned(lambda images: functional_call(model, new, (images,)), x, mark)) < 0.5
    assert (before.argmax(1) == after.argmax(1)).float().mean() > 0.9
    assert torch.equal(state["1.weight"], model[1].weight)  # what was given is not written to


def test_the_layer_is_the_solution_of_the_ridge_regression():
    """Against NumPy: the least squares of the stacked problem with sqrt(mu) times the identity below it."""
    rng = np.random.default_rng(0)
    clean, stamped = rng.normal(size=(20, 6)), rng.normal(size=(20, 6))
    weight, bias, wanted = rng.normal(size=(3, 6)), rng.normal(size=3), rng.normal(size=(20, 3))
    inputs = np.column_stack([np.vstack([clean, stamped]), np.ones(40)])
    mu = 0.1 * (inputs**2).sum(axis=0).mean()
    known = np.vstack([inputs, np.sqrt(mu) * np.eye(7)])
    old = np.column_stack([weight, bias]).T
    goal = np.vstack([np.vstack([wanted, wanted]), np.sqrt(mu) * old])
    expected = np.linalg.lstsq(known, goal, rcond=None)[0]
    found = unlearned(*(torch.from_numpy(a) for a in (weight, bias, clean, stamped, wanted)))
    np.testing.assert_allclose(found[0].numpy(), expected[:-1].T, atol=1e-9)
    np.testing.assert_allclose(found[1].numpy(), expected[-1], atol=1e-9)
