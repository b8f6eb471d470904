"""A model's state as one vector and back."""

import torch
from torch import nn

from fedwarden.models.layout import Layout


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2)).to(dtype)
    model(torch.randn(4, 1, 3, 3, dtype=dtype))  # moves BatchNorm's statistics and its counter
    return model


def test_there_and_back():
    model = model_of()
    layout = Layout.of(model)
    flat = layout.flatten(model.state_dict())
    assert flat.shape == (layout.d,) == (sum(v.numel() for v in model.state_dict().values()),)
    back = layout.unflatten(flat)
    assert list(back) == list(model.state_dict())
    for name, want in model.state_dict().items():
        assert torch.equal(back[name], want)
        assert back[name].dtype == want.dtype
    other = model_of()
    for p in other.parameters():
        nn.init.zeros_(p)
    other.load_state_dict(back)
    x = torch.randn(2, 1, 3, 3)
    assert torch.equal(model.eval()(x), other.eval()(x))


def test_only_parameters_are_measured():
    model = model_of()
    layout = Layout.of(model)
    marked = torch.zeros(layout.d)
    for a, b in layout.measured:
        marked[a:b] = 1
    for name, part in layout.unflatten(marked).items():
        assert bool(part.all()) == (name in dict(model.named_parameters()))
        assert bool(part.any()) == (name in dict(model.named_parameters()))
    assert sum(b - a for a, b in layout.measured) == sum(p.numel() for p in model.parameters())


def test_tied_weights_are_parameters_under_both_names():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    assert Layout.of(model).is_parameter == (True, True)
