"""Finding the rectified units of a model, whoever calls them, and leaving it as it was."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedwarden.models.activations import find_layers, patterns

RECTIFIERS = {
    "ReLU": nn.ReLU(),
    "ReLU in place": nn.ReLU(inplace=True),
    "F.relu": F.relu,
    "F.relu in place": lambda z: F.relu(z, inplace=True),
    "F.relu_": F.relu_,
    "torch.relu": torch.relu,
    "torch.relu_": torch.relu_,
    "Tensor.relu": Tensor.relu,
    "Tensor.relu_": Tensor.relu_,
    "by name": lambda z: F.relu(input=z),
    "ReLU6": nn.ReLU6(inplace=True),
    "F.relu6": F.relu6,
    "LeakyReLU": nn.LeakyReLU(0.2, inplace=True),
    "F.leaky_relu": lambda z: F.leaky_relu(z, 0.2),
    "F.leaky_relu_": lambda z: F.leaky_relu_(z, 0.2),
    "PReLU": nn.PReLU(),
    "F.prelu": lambda z: F.prelu(z, torch.full((1,), 0.25)),
    "Tensor.prelu": lambda z: z.prelu(torch.full((1,), 0.25)),
    "GELU": nn.GELU(),
    "F.gelu": lambda z: F.gelu(z, approximate="tanh"),
    "SiLU": nn.SiLU(inplace=True),
    "F.silu": lambda z: F.silu(z, inplace=True),
}


pytestmark = pytest.mark.usefixtures("one_thread")


class TwoLayers(nn.Module):
    """Two linear layers with any rectifier behind each."""

    def __init__(self, rectify):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)
        self.rectify = rectify

    def forward(self, x):
        return self.last(self.rectify(self.second(self.rectify(self.first(x)))))


def inputs_of(model, names, x):
    """The outputs of the named modules, seen by hooks: the pre-activations, from outside of the code."""
    seen = []
    handles = [model.get_submodule(n).register_forward_hook(lambda m, a, out: seen.append(out.clone())) for n in names]
    model(x)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("name", RECTIFIERS)
def test_modules_and_functions_are_seen_alike_and_before_they_change_their_input(name):
    torch.manual_seed(0)
    model, x = TwoLayers(RECTIFIERS[name]), torch.randn(9, 4)
    found = patterns(model, x)
    assert len(found) == 2
    for bits, z in zip(found.values(), inputs_of(model, ("first", "second"), x), strict=True):
        assert bits.dtype == torch.bool
        assert torch.equal(bits, z > 0)


def test_every_channel_and_position_of_a_convolution_is_a_unit():
    model, x = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU()), torch.randn(5, 2, 6, 7)
    assert torch.equal(patterns(model, x)["layer 1"], model[0](x).flatten(1) > 0)
    assert find_layers(model, x)[0].size == 3 * 4 * 5


@pytest.mark.parametrize("activation", ["relu", "gelu", F.relu, nn.ReLU(), nn.GELU()])
@pytest.mark.parametrize("batch_first", [True, False])
def test_transformers_show_their_activation_and_the_axis_of_the_samples(activation, batch_first):
    torch.manual_seed(0)
    n = steps = 4  # as many steps as samples: shapes alone would not tell them apart

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=batch_first)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x):
            out = self.encoder(x if batch_first else x.transpose(0, 1))
            return out if batch_first else out.transpose(0, 1)

    model, x = Tokens(), torch.randn(n, steps, 8)
    found = patterns(model.eval(), x)
    assert len(found) == 2
    model.train()  # the path without fused layers
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.MultiheadAttention):
            module.eval()
    z = inputs_of(model, ["encoder.layers.0.linear1", "encoder.layers.1.linear1"], x)
    for bits, values in zip(found.values(), z, strict=True):
        want = (values if batch_first else values.transpose(0, 1)).reshape(n, -1) > 0
        assert bits.shape == (n, steps * 16)
        assert (bits == want).float().mean() > 0.999  # attention may differ in the last digit


def test_samples_flattened_with_their_positions_are_told_apart_again():
    class Flattening(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 3)

        def forward(self, x):
            return F.relu(self.linear(x.reshape(-1, 2))).reshape(len(x), -1)

    model, x = Flattening(), torch.randn(5, 4, 2)
    assert torch.equal(patterns(model, x)["layer 1"], model.linear(x).flatten(1) > 0)


def test_units_that_no_sample_reaches_are_left_out():
    class Positional(nn.Module):
        def __init__(self):
            super().__init__()
            self.place, self.linear, self.relu = nn.Parameter(torch.randn(3)), nn.Linear(3, 3), nn.ReLU()

        def forward(self, x):
            return self.relu(self.linear(x) + self.relu(self.place))

    model, x = Positional(), torch.randn(5, 3)
    found = patterns(model, x)
    assert list(found) == ["layer 1 (relu)"]
    assert torch.equal(found["layer 1 (relu)"], model.linear(x) + model.place.relu() > 0)


def test_a_shared_module_is_a_layer_each_time_it_runs():
    shared = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 3), shared, nn.Linear(3, 4), shared)
    assert [bits.shape[1] for bits in patterns(model, torch.randn(5, 2)).values()] == [3, 4]


def test_a_model_without_rectified_units_is_told_so():
    with pytest.raises(ValueError, match=r"no rectified unit found in Sequential; looked for ReLU, ReLU6, .* and SiLU"):
        patterns(nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Hardtanh()), torch.randn(3, 2))


@pytest.mark.parametrize("rectify", [nn.ReLU(), F.relu])
@pytest.mark.parametrize("failing", [False, True])
def test_nothing_of_the_model_has_changed_afterwards(rectify, failing):
    model = nn.Sequential(TwoLayers(rectify), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.ReLU(), nn.Linear(3, 2))
    model[0].first.eval()
    state, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    if failing:
        with pytest.raises(RuntimeError):
            patterns(model, torch.randn(5, 7))
    else:
        patterns(model, torch.randn(5, 4))
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
