"""Stacked layers against torch's own, client by client: values and gradients."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedwarden.models.layout import Layout
from fedwarden.sim.training.stacked import (
    Noise,
    Stacked,
    keep_mask,
    max_pool,
    overlap,
    overlap_at_once,
    pool,
    pool_at_once,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(images):
    """(c, h, w, b) of one client as the (b, c, h, w) of torch."""
    return images.movedim(-1, 0)


def assert_layer(layer, reference, x):
    """A layer without parameters of all clients against torch's own of each: values, and gradients at the input."""
    theirs = x.clone().requires_grad_()
    want = torch.stack([reference(plain(images)).movedim(0, -1) for images in theirs])
    got, pull = layer(x, Noise([]))
    want = want.reshape(got.shape)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    upstream = randn(*got.shape, seed=9)
    (gradient,) = torch.autograd.grad(want, theirs, upstream)
    torch.testing.assert_close(pull(upstream), gradient, rtol=1e-9, atol=1e-9)


def assert_model(model, x):
    """A model of all clients against the model of each: logits, and gradients of every parameter."""
    layout, stacked = Layout.of(model), Stacked.of(model)
    assert stacked is not None
    weights = [randn(len(x), *shape, seed=i).requires_grad_() for i, shape in enumerate(layout.shapes)]
    want = torch.stack(
        [
            torch.func.functional_call(model, dict(zip(layout.names, own, strict=True)), plain(images)).movedim(0, -1)
            for images, *own in zip(x, *weights, strict=True)
        ]
    )
    got, back = stacked(x, [w.detach() for w in weights], Noise([]))
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    upstream = randn(*got.shape, seed=9)
    found = [part for left, right in back(upstream) for part in (left @ right.mT, left.sum(dim=2))]
    for ours, theirs in zip(found, torch.autograd.grad(want, weights, upstream), strict=True):
        torch.testing.assert_close(ours.reshape(theirs.shape), theirs, rtol=1e-9, atol=1e-9)


GEOMETRIES = [((1, 5, 5), (2, 5, 5)), ((3, 7, 6), (2, 3, 2)), ((2, 4, 9), (1, 1, 4)), ((1, 1, 3), (1, 1, 1))]


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(("image", "kernel"), GEOMETRIES)
def test_convolution(clients, image, kernel):
    """Behind another one, so that the gradient at its input matters too."""
    outputs, *window = kernel
    model = nn.Sequential(nn.Conv2d(image[0], image[0], 1), nn.Conv2d(image[0], outputs, window)).double()
    assert_model(model, randn(clients, *image, 4, seed=1))


@pytest.mark.parametrize(("image", "kernel"), GEOMETRIES)
def test_windows_are_added_at_once_as_one_by_one(image, kernel):
    """A GPU's way, on whatever there is."""
    (channels, height, width), (_, k, m) = image, kernel
    windows = randn(2, channels, k, m, height - k + 1, (width - m + 1) * 4)
    torch.testing.assert_close(overlap_at_once(windows, 4), overlap(windows, 4), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("values", [1, 3, 1000])
@pytest.mark.parametrize("size", [(2, 2), (5, 7), (4, 3)])
def test_a_gpus_pooling_is_that_of_a_cpu(size, values):
    x = torch.randint(values, (2, 3, *size, 4), generator=torch.Generator().manual_seed(0)).to(torch.float64)
    (one, pull_one), (other, pull_other) = pool(x), pool_at_once(x)
    assert torch.equal(one, other)
    assert torch.equal(pull_one(upstream := randn(*one.shape)), pull_other(upstream))


@pytest.mark.parametrize("values", [1, 2, 3, 10**6])
@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 4), (4, 7), (5, 7), (3, 2)])
def test_max_pooling_of_ties(values, size):
    """Constant images and images of a few values: the gradient goes where torch's goes."""
    x = torch.randint(values, (2, 2, *size, 8), generator=torch.Generator().manual_seed(0)).to(torch.float64)
    assert_layer(max_pool, lambda x: F.max_pool2d(x, 2), x)


MODELS = {
    "padded": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)),
    "uneven padding": nn.Sequential(nn.Conv2d(2, 3, 3, padding=(2, 0)), nn.Sigmoid(), nn.Flatten(), nn.Linear(63, 4)),
    "relu before pooling": nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    ),
    "padding inside": nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(32, 4)
    ),
    "activations at both ends": nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(50, 4), nn.Tanh(), nn.ReLU()),
    "nothing": nn.Sequential(nn.Identity(), nn.Dropout(0.0), nn.Flatten(), nn.Linear(50, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_many_clients_is_the_model_of_each(name):
    assert_model(MODELS[name].double(), randn(3, 6, 2, 5, 5, seed=4).movedim(1, -1))  # 3 clients, 6 images of 2x5x5


def test_a_linear_layer_over_images_is_refused():
    stacked = Stacked.of(nn.Sequential(nn.Linear(3, 2)))
    with pytest.raises(ValueError, match="flat features; got 3 axes"):
        stacked(randn(1, 3, 3, 3, 4), [randn(1, 2, 3), randn(1, 2)], Noise([]))


class Scaled(nn.Linear):
    """A layer of the user's own that happens to be a Linear."""

    def forward(self, x):
        return 2 * super().forward(x)


class Backwards(nn.Sequential):
    """A Sequential of the user's own with another order of its layers."""

    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x


LINEAR = nn.Linear(4, 4)


WITHOUT = {
    "not sequential": nn.Linear(3, 2),
    "no bias": nn.Sequential(nn.Linear(3, 2, bias=False)),
    "stride": nn.Sequential(nn.Conv2d(1, 1, 3, stride=2)),
    "dilation": nn.Sequential(nn.Conv2d(1, 1, 3, dilation=2)),
    "groups": nn.Sequential(nn.Conv2d(2, 2, 3, groups=2)),
    "no bias in a convolution": nn.Sequential(nn.Conv2d(1, 1, 3, bias=False)),
    "padding by name": nn.Sequential(nn.Conv2d(1, 1, 3, padding="same")),
    "circular padding": nn.Sequential(nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")),
    "pooling of 3": nn.Sequential(nn.MaxPool2d(3)),
    "pooling with stride": nn.Sequential(nn.MaxPool2d(2, stride=1)),
    "pooling with padding": nn.Sequential(nn.MaxPool2d(2, padding=1)),
    "pooling rounded up": nn.Sequential(nn.MaxPool2d(2, ceil_mode=True)),
    "pooling with dilation": nn.Sequential(nn.MaxPool2d(2, dilation=2)),
    "flatten some": nn.Sequential(nn.Flatten(2)),
    "batch norm": nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)),
    "layer norm": nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)),
    "nested": nn.Sequential(nn.Sequential(nn.Linear(3, 3))),
    "a subclass of a layer": nn.Sequential(Scaled(3, 2)),
    "a subclass of Sequential": Backwards(nn.Tanh(), nn.Linear(3, 3)),
    "a layer used twice": nn.Sequential(LINEAR, nn.Tanh(), LINEAR),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_has_no_stacked_form_says_so(name):
    assert Stacked.of(WITHOUT[name]) is None


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_keeps_the_mean(p):
    mask = keep_mask(torch.rand(200, 500, generator=torch.Generator().manual_seed(0)), p)
    kept = (mask > 0).double().mean().item()
    assert kept == pytest.approx(1 - p, abs=5 * (p * (1 - p) / mask.numel()) ** 0.5)  # five standard errors
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
