"""What a participant can make of what it sees: exact at n = 2, and the model is left as it was."""

import pytest
import torch
from torch import nn

from fedwarden.audit.information import Information, remove_own, representations
from fedwarden.models.layout import Layout


def small(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))


def states(n, seed=0):
    return torch.randn(n, 23, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_two_clients_see_each_other_exactly():
    own, other = states(2)
    assert torch.allclose(remove_own((own + other) / 2, own, 1 / 2), other, rtol=0, atol=1e-15)
    own, other = (x.float() for x in states(2, 1))
    average = ((own.double() + other.double()) / 2).float()
    error = (remove_own(average, own, 1 / 2) - other).abs()
    assert (error <= 2 * torch.finfo(torch.float32).eps * average.abs() + 1e-9).all()  # the average's own rounding


def test_the_average_of_the_others_weighted_by_examples():
    rows, counts = states(4), torch.tensor([10.0, 300.0, 5.0, 85.0], dtype=torch.float64)
    average = (counts[:, None] * rows).sum(dim=0) / counts.sum()
    others = (counts[1:, None] * rows[1:]).sum(dim=0) / counts[1:].sum()
    assert torch.allclose(remove_own(average, rows[0], 10 / 400), others, rtol=1e-12)


def test_many_clients_cost_no_digits():
    n, d = 1000, 1_500_000  # more than one block
    g = torch.Generator().manual_seed(0)
    average = torch.randn(d, generator=g) + 100
    own = average + 1e-3 * torch.randn(d, generator=g)
    exact = (n * average.double() - own.double()) / (n - 1)
    good = (remove_own(average, own, 1 / n).double() - exact).abs().max()
    naive = ((n * average - own) / (n - 1)).double().sub(exact).abs().max()
    assert good <= 0.5001 * torch.finfo(torch.float32).eps * 128  # half a unit in the last place of numbers near 100
    assert naive > 1.5 * good


@pytest.mark.parametrize("share", [1.0, -0.1, 1.5])
def test_the_own_share_is_part_of_a_whole(share):
    with pytest.raises(ValueError, match=rf"lies in \[0, 1\); got {share}"):
        remove_own(torch.ones(2), torch.ones(2), share)


def test_representations_are_the_outputs_of_the_layers_for_the_given_state():
    model, other, x = small(0), small(1), torch.randn(6, 4)
    logits, layers = representations(model, other.state_dict(), x)
    hidden = x @ other[0].weight.T + other[0].bias
    assert torch.allclose(layers["0"], hidden)
    assert torch.allclose(layers["1"], hidden.clamp(min=0))
    assert torch.allclose(layers["2"], other(x))
    assert torch.equal(logits, layers["2"])
    assert not logits.requires_grad


def test_layers_that_repeat_another_are_left_out_and_shared_ones_are_numbered():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.flat, self.a, self.relu, self.drop = nn.Flatten(), nn.Linear(4, 4), nn.ReLU(), nn.Dropout()
            self.inplace, self.same = nn.ReLU(inplace=True), nn.Identity()

        def forward(self, x):
            return self.same(self.inplace(self.a(self.drop(self.relu(self.a(self.flat(x)))))))

    model = Shared()
    x = torch.randn(3, 2, 2)
    _, layers = representations(model, model.state_dict(), x)
    assert list(layers) == ["a", "relu", "a#2"]
    first = x.reshape(3, 4) @ model.a.weight.T + model.a.bias
    second = first.clamp(min=0) @ model.a.weight.T + model.a.bias
    assert torch.allclose(layers["a"], first)
    assert torch.allclose(layers["a#2"], second.clamp(min=0))  # rewritten in place


def test_layers_may_be_chosen():
    model, x = small(), torch.randn(2, 4)
    assert list(representations(model, model.state_dict(), x, only=["1"])[1]) == ["1"]
    assert representations(model, model.state_dict(), x, only=[])[1] == {}
    with pytest.raises(ValueError, match="no module 'head'; it has 0, 1, 2"):
        representations(model, model.state_dict(), x, only=["head"])


def test_views_follow_each_other_and_hold_no_more_than_the_last():
    model, x = small(), torch.randn(5, 4)
    info = Information(model, x, share=1 / 2)
    d = Layout.of(model).d
    rows = states(6, seed=3)[:, :d].float()
    view, others = None, []
    for t in range(3):
        own, other = rows[2 * t], rows[2 * t + 1]
        view = info.step(view, t + 1, (own + other) / 2, own)
        others.append(other)
        assert torch.allclose(view.target, other, atol=1e-6)
    assert torch.allclose(view.gradient, others[2] - others[1], atol=1e-6)
    model.load_state_dict(Layout.of(model).unflatten(others[2]))
    assert torch.allclose(view.logits, model(x), atol=1e-5)
    held = [v for v in vars(view).values() if isinstance(v, torch.Tensor)] + list(view.layers.values())
    assert sum(v.numel() for v in held) == 2 * d + 5 * (3 + 3 + 2) + 5 * 2
    with pytest.raises(ValueError, match="rounds come in order; got round 3 after round 3"):
        info.step(view, 3, rows[0], rows[1])


def test_the_first_round_has_no_gradient_and_a_client_that_sat_out_removes_nothing():
    info = Information(small(), torch.randn(2, 4), share=1 / 2)
    params = torch.randn(info.layout.d)
    first = info.step(None, 1, params, own=None)
    assert first.gradient is None
    assert torch.equal(first.target, params)
    left_in = Information(small(), torch.randn(2, 4)).step(None, 1, params, own=torch.randn(info.layout.d))
    assert torch.equal(left_in.target, params)


def test_a_model_may_come_flat_or_as_a_state_dict_or_as_arrays():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    info = Information(model, torch.randn(3, 2))
    state = model.state_dict()
    flat = info.flat(state)
    assert torch.equal(flat, info.flat([v.numpy() for v in state.values()]))
    assert torch.equal(flat, info.flat(flat))
    assert torch.equal(flat, info.flat(flat.double().numpy()))
    assert info.flat(flat).data_ptr() != flat.data_ptr()  # the caller may go on writing to it
    assert {k: len(v) for k, v in info.parameters(flat).items()} == {
        "0.weight": 4, "0.bias": 2, "1.weight": 2, "1.bias": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match="15 parameters and buffers; got 3 numbers"):
        info.flat(torch.zeros(3))
    with pytest.raises(ValueError, match=r"the model has '0.weight'; the state dict has 0.bias"):
        info.flat({"0.bias": torch.zeros(2)})
