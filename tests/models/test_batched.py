"""Running the models of a round: whose weights they are, and that no trace is left."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.models.batched import at_home, each_model, evaluating
from fedwarden.models.layout import Layout
from fedwarden.updates.formed import Mixed

N = 21  # more than two groups of one after another


pytestmark = pytest.mark.usefixtures("one_thread")


class Indexed(nn.Module):
    """Linear layers with BatchNorm and a table of indices, which is an integer buffer that matters."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)
        self.register_buffer("order", torch.tensor([2, 0, 1, 3]))

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x)))[:, self.order])


def model_and_rows(dtype=torch.float32):
    torch.manual_seed(0)
    model = Indexed().to(dtype)
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    models = params + torch.randn(N, layout.d)
    starts = dict(zip(layout.names, np.cumsum((0, *layout.sizes)), strict=False))
    order, variance = (slice(starts[name], starts[name] + 4) for name in ("order", "norm.running_var"))
    models[:, order] = params[order]
    models[:, variance] = models[:, variance].abs() + 0.5
    return model, layout, params, models


def cohort(updates, params):
    return fw.Cohort(1, tuple(map(str, range(len(updates)))), updates, np.ones(len(updates)), params)


def held(layout, models, params):
    """The same models in every form in which updates may arrive."""
    deltas = models - params
    return {
        "deltas": fw.Updates.of(deltas),
        "measured": fw.Updates.of(models, params, layout.measured),
        "another base": fw.Updates.of(deltas + 1, torch.ones(layout.d)),
        "layers": fw.Updates.of([list(row.split(list(layout.sizes))) for row in models], params, layout.measured),
        "float64": fw.Updates.of(models.double(), params),
        "columns first": fw.Updates.of(models.T.contiguous().T, params),
        "mixed": Mixed(fw.Updates.of(models.flip(0), params), np.eye(N)[::-1].copy()),
        "some": fw.Updates.of(torch.cat([models[:3], models]), params).select(range(3, N + 3)),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_model_has_the_weights_that_its_client_sent(dtype):
    model, layout, params, models = model_and_rows(dtype)
    x = at_home(torch.randn(5, 3), model)
    want = []
    for row in (params, *models):
        twin = copy.deepcopy(model).eval()
        twin.load_state_dict(layout.unflatten(row))
        want.append(twin(x).detach())
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    for name, updates in held(layout, models, params).items():
        with evaluating(model):
            groups = list(each_model(lambda: [model(x)], model, cohort(updates, params)))
        assert len(groups[0][0]) == 1  # the global model
        got = torch.cat([group[0] for group in groups])
        assert torch.allclose(got.float(), torch.stack(want).float(), atol=tolerance, rtol=0.02), name


def test_whole_numbers_are_those_of_the_global_model():
    model, layout, params, models = model_and_rows()
    place = [n for n, size in zip(layout.names, layout.sizes, strict=True) for _ in range(size)].index("order")
    wrong, x = models.clone(), torch.randn(5, 3)
    wrong[2, place : place + 4] = torch.tensor([9e9, -5.0, 4.0, 0.5])
    with evaluating(model):
        want, got = (
            torch.cat([g[0] for g in each_model(lambda: [model(x)], model, cohort(fw.Updates.of(rows), params))])
            for rows in (models - params, wrong - params)
        )
    assert torch.equal(got, want)


def test_the_servers_model_is_as_it_was_even_after_an_error():
    model, _, params, models = model_and_rows()
    model.first.eval()
    before, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    places = {name: p.data_ptr() for name, p in model.named_parameters()}

    def fail():
        model(torch.randn(5, 3))
        raise KeyError("a fault of the caller")

    def look():
        assert not torch.is_grad_enabled()
        assert not any(m.training for m in model.modules())
        return [model(torch.randn(5, 3))]

    with evaluating(model):
        list(each_model(look, model, cohort(fw.Updates.of(models, params), params)))
    with pytest.raises(KeyError), evaluating(model):
        list(each_model(fail, model, cohort(fw.Updates.of(models, params), params)))
    assert [m.training for m in model.modules()] == flags
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_tied_weights_are_taken_as_they_were_sent():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    model, x = Tied(), torch.randn(4, 3)
    params = Layout.of(model).flatten(model.state_dict())
    weight = torch.randn(3, 3)
    updates = fw.Updates.of(torch.cat([weight.flatten(), weight.flatten()])[None], params)
    with evaluating(model):
        _, (got,) = each_model(lambda: [model(x)], model, cohort(updates, params))
    assert torch.allclose(got[0], x @ weight.T @ weight.T, atol=1e-5)


def test_samples_take_the_precision_of_the_model_but_tokens_stay():
    model = nn.Linear(2, 2).bfloat16()
    assert at_home(torch.randn(3, 2), model).dtype == torch.bfloat16
    assert at_home(torch.arange(3), model).dtype == torch.int64
    assert at_home(torch.randn(3), nn.ReLU()).dtype == torch.float32


def test_a_cohort_that_does_not_fit_the_model():
    model, layout, params, models = model_and_rows()
    with pytest.raises(ValueError, match="this cohort has no params"):
        next(each_model(list, model, cohort(fw.Updates.of(models), None)))
    short = fw.Updates.of(models[:, :9])
    with pytest.raises(ValueError, match=rf"updates of d=9, {layout.d} params and a model of {layout.d}"):
        next(each_model(list, model, cohort(short, params)))
