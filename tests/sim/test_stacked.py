"""Stacked layers against torch's own, client by client: values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedwarden.core.layout import Layout
from fedwarden.sim.stacked import Convolution, MaxPool, Noise, Stacked, keep_mask


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Small products on many threads are slow where the cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def plain(images):
    """(c, h, w, b) of one client as the (b, c, h, w) of torch."""
    return images.movedim(-1, 0)


def assert_same_with_gradients(stacked, reference, inputs):
    """One function of all clients against one of each client's own part of the same inputs."""
    ours = [t.clone().requires_grad_() for t in inputs]
    theirs = [t.clone().requires_grad_() for t in inputs]
    a = stacked(*ours)
    b = torch.stack([reference(*(t[i] for t in theirs)).movedim(0, -1) for i in range(len(inputs[0]))])
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
    upstream = randn(*a.shape, seed=9)
    for x, y in zip(torch.autograd.grad(a, ours, upstream), torch.autograd.grad(b, theirs, upstream), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("clients", [1, 3])
@pytest.mark.parametrize(
    ("image", "kernel"),
    [((1, 5, 5), (2, 5, 5)), ((3, 7, 6), (2, 3, 2)), ((2, 4, 9), (1, 1, 4)), ((1, 1, 3), (1, 1, 1))],
)
def test_convolution(clients, image, kernel):
    outputs, *window = kernel
    x = randn(clients, *image, 4, seed=1)
    weight, bias = randn(clients, outputs, image[0], *window, seed=2), randn(clients, outputs, seed=3)
    assert_same_with_gradients(Convolution.apply, lambda x, w, b: F.conv2d(plain(x), w, b), [x, weight, bias])


def test_convolution_passes_gradcheck():
    inputs = [randn(2, 2, 4, 5, 3, seed=1), randn(2, 3, 2, 3, 2, seed=2), randn(2, 3, seed=3)]
    assert torch.autograd.gradcheck(Convolution.apply, [t.requires_grad_() for t in inputs])


def test_convolution_of_features_without_gradient():
    """The first layer's input needs none; the kernels still get theirs."""
    x, weight, bias = randn(1, 1, 4, 4, 2), randn(1, 2, 1, 3, 3, seed=1).requires_grad_(), randn(1, 2, seed=2)
    (ours,) = torch.autograd.grad(Convolution.apply(x, weight, bias).square().sum(), weight)
    (want,) = torch.autograd.grad(F.conv2d(plain(x[0]), weight[0], bias[0]).square().sum(), weight)
    torch.testing.assert_close(ours, want)


def test_convolution_of_a_view():
    """Features arrive with the batch moved to the end, not contiguous."""
    images = randn(2, 4, 3, 6, 5)  # (g, b, c, h, w)
    weight, bias = randn(2, 2, 3, 3, 3, seed=1), randn(2, 2, seed=2)
    got = Convolution.apply(images.movedim(1, -1), weight, bias)
    want = torch.stack([F.conv2d(images[i], weight[i], bias[i]) for i in range(2)])
    torch.testing.assert_close(got.movedim(-1, 1), want)


@pytest.mark.parametrize("size", [(2, 2), (4, 6), (5, 4), (4, 7), (5, 7), (3, 2)])
def test_max_pooling(size):
    x = randn(2, 3, *size, 4)
    assert_same_with_gradients(MaxPool.apply, lambda x: F.max_pool2d(plain(x), 2), [x])


@pytest.mark.parametrize("values", [1, 2, 3])
@pytest.mark.parametrize("size", [(4, 4), (5, 7)])
def test_max_pooling_of_ties(values, size):
    """Constant images and images of a few values: the gradient goes where torch's goes."""
    x = torch.randint(values, (2, 2, *size, 8), generator=torch.Generator().manual_seed(0)).to(torch.float64)
    assert_same_with_gradients(MaxPool.apply, lambda x: F.max_pool2d(plain(x), 2), [x])


def test_among_equal_values_the_first_gets_the_gradient():
    x = torch.ones(1, 1, 2, 2, 1, requires_grad=True)
    MaxPool.apply(x).sum().backward()
    assert x.grad.flatten().tolist() == [1.0, 0.0, 0.0, 0.0]


def test_max_pooling_passes_gradcheck():
    x = torch.randperm(2 * 2 * 5 * 4 * 2, generator=torch.Generator().manual_seed(0)).to(torch.float64)  # no ties
    assert torch.autograd.gradcheck(MaxPool.apply, [x.reshape(2, 2, 5, 4, 2).requires_grad_()])


MODELS = {
    "padded": nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)),
    "uneven padding": nn.Sequential(nn.Conv2d(2, 3, 3, padding=(2, 0)), nn.Sigmoid(), nn.Flatten(), nn.Linear(63, 4)),
    "relu before pooling": nn.Sequential(
        nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 4)
    ),
    "nothing": nn.Sequential(nn.Identity(), nn.Dropout(0.0), nn.Flatten(), nn.Linear(50, 4)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_many_clients_is_the_model_of_each(name):
    model = MODELS[name].double()
    layout, stacked = Layout.of(model), Stacked.of(model)
    assert stacked is not None
    x = randn(3, 6, 2, 5, 5, seed=4)  # 3 clients, 6 images of 2x5x5
    weights = [randn(3, *shape, seed=i) for i, shape in enumerate(layout.shapes)]

    def of_each(*w):
        return torch.func.functional_call(model, dict(zip(layout.names, w[1:], strict=True)), plain(w[0]))

    assert_same_with_gradients(lambda x, *w: stacked(x, list(w), Noise([])), of_each, [x.movedim(1, -1), *weights])


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
    mask = keep_mask(200, 500, p, torch.Generator().manual_seed(0))
    kept = (mask > 0).double().mean().item()
    assert kept == pytest.approx(1 - p, abs=5 * (p * (1 - p) / mask.numel()) ** 0.5)  # five standard errors
    assert mask.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])


def test_dropout_of_everything_leaves_nothing():
    """As nn.Dropout(1.0) does."""
    assert not keep_mask(3, 4, 1.0, torch.Generator().manual_seed(0)).any()


def test_a_clients_masks_do_not_depend_on_its_group():
    def masks(seeds):
        noise = Noise([torch.Generator().manual_seed(s) for s in seeds])
        return [noise.keep(len(seeds), 7, 4, 0.5, torch.device("cpu")) for _ in range(3)]

    together, alone = masks([1, 2, 3]), masks([2])
    for a, b in zip(together, alone, strict=True):
        assert a.shape == (3, 7, 4)
        assert torch.equal(a[1], b[0])
