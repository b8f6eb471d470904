"""Probes: whose samples they are, and that made ones look like what they should."""

import copy

import pytest
import torch
from torch import nn

from fedwarden.signals.probe import draw_probe, synthetic_probe
from fedwarden.sim.models import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def cnn():
    return build_model("pid_made_cnn", {}, (1, 16, 16), 4, seed=0)


def test_samples_are_drawn_once_each_and_the_draw_is_the_generators():
    inputs = torch.arange(300.0).reshape(100, 3)
    a, b, c = (draw_probe(inputs, size=60, rng=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert len({tuple(row) for row in a.tolist()}) == 60
    assert torch.equal(draw_probe(inputs, size=100, rng=seeded()).sort(dim=0).values, inputs)
    with pytest.raises(ValueError, match="got 101 of 100"):
        draw_probe(inputs, size=101, rng=seeded())


def test_noise_has_the_statistics_of_each_channel():
    x = synthetic_probe(nn.Linear(1, 1), (2, 40, 40), size=50, mean=(1.0, -3.0), std=(0.5, 2.0), rng=seeded())
    assert x.shape == (50, 2, 40, 40)
    assert x.mean(dim=(0, 2, 3)).tolist() == pytest.approx([1.0, -3.0], abs=0.03)
    assert x.std(dim=(0, 2, 3)).tolist() == pytest.approx([0.5, 2.0], abs=0.03)


@pytest.mark.parametrize("kind", ["noise", "optimised"])
def test_a_made_probe_depends_on_the_generator_alone_and_leaves_the_model(kind):
    model = cnn()
    state, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    a, b, c = (synthetic_probe(model, (1, 16, 16), 8, kind, rng=seeded(s)) for s in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not a.requires_grad
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_optimised_samples_stand_for_every_class_alike():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 4, bias=False))
    noise, made = (synthetic_probe(model, (16,), 40, kind, rng=seeded()) for kind in ("noise", "optimised"))
    wanted = torch.arange(40) % 4
    before, after = (model(x).softmax(dim=1)[torch.arange(40), wanted] for x in (noise, made))
    assert (after > before).all()
    assert model(made).argmax(dim=1).bincount(minlength=4).tolist() == [10, 10, 10, 10]


def test_a_step_has_the_size_of_the_inputs_however_small_the_gradient_is():
    """A linear model pushes each sample along one line: 20 steps of a tenth of the deviation in every input."""
    model = nn.Linear(6, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(1e-25 * torch.tensor([[1.0] * 6, [-1.0] * 6]))
    start, end = (synthetic_probe(model, (6,), 2, kind, std=3.0, rng=seeded()) for kind in ("noise", "optimised"))
    moved = torch.tensor([[1.0], [-1.0]]).expand(2, 6) * 20 * 0.1 * 3.0
    assert torch.allclose(end - start, moved, rtol=1e-4)


def test_preconditions():
    with pytest.raises(ValueError, match=r"at least 2 samples .* got 1 of 'noise'"):
        synthetic_probe(cnn(), (1, 16, 16), size=1, rng=seeded())
    with pytest.raises(ValueError, match="one per channel, of 1; got 2"):
        synthetic_probe(cnn(), (1, 16, 16), mean=(0.0, 1.0), rng=seeded())
    with pytest.raises(ValueError, match=r"\(N, C\) class scores; use kind='noise'"):
        synthetic_probe(nn.Conv2d(1, 1, 3), (1, 8, 8), kind="optimised", rng=seeded())
