"""Models that are plain sequences: the same numbers as the modules themselves, and what is no such model."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.models.layout import Layout
from fedwarden.models.sequential import TOGETHER, PlainMLP
from fedwarden.updates.mixed import Mixed

N = TOGETHER + 5  # two groups

pytestmark = pytest.mark.usefixtures("one_thread")


def plain():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(6, 5), nn.ReLU(), nn.Dropout(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3)
    )


def twice():
    rectifier = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 5), rectifier, nn.Linear(5, 4), rectifier, nn.Linear(4, 2))


CHAINS = {
    "plain": (plain, (2, 3)),
    "one rectifier twice": (twice, (6,)),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU()), nn.Identity(), nn.Linear(5, 2)),
        (6,),
    ),
    "without biases": (
        lambda: nn.Sequential(nn.Linear(6, 4, bias=False), nn.SiLU(), nn.Linear(4, 2), nn.ReLU6()),
        (6,),
    ),
    "one layer": (lambda: nn.Sequential(nn.Linear(6, 4)), (6,)),
}


class Twisted(nn.Sequential):
    def forward(self, x):
        return -super().forward(x)


SHARED = nn.Linear(6, 6)
OTHERS = {
    "no sequence": (lambda: nn.Linear(6, 2), (6,)),
    "a forward of its own": (lambda: Twisted(nn.Linear(6, 2), nn.ReLU()), (6,)),
    "a sequence inside with one": (lambda: nn.Sequential(Twisted(nn.Linear(6, 2)), nn.ReLU()), (6,)),
    "filters": (lambda: nn.Sequential(nn.Conv1d(1, 1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)), (1, 6)),
    "normalised": (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()), (6,)),
    "flattened later": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)), (2, 3)),
    "several rows a sample": (lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU()), (2, 3)),
    "flattened in part": (lambda: nn.Sequential(nn.Flatten(1, 2), nn.Linear(6, 2), nn.ReLU()), (2, 3, 6)),
    "a layer twice": (lambda: nn.Sequential(SHARED, nn.ReLU(), SHARED, nn.ReLU()), (6,)),
    "rectified first": (lambda: nn.Sequential(nn.ReLU(), nn.Linear(6, 2), nn.ReLU()), (6,)),
    "half precision": (lambda: plain().to(torch.bfloat16), (2, 3)),
    "empty": (nn.Sequential, (6,)),
}


def cohort(updates, params):
    return fw.Cohort(1, tuple(map(str, range(len(updates)))), updates, np.ones(len(updates)), params)


@pytest.mark.parametrize("name", CHAINS)
def test_every_model_gives_what_its_modules_give(name):
    torch.manual_seed(0)
    build, shape = CHAINS[name]
    model, x = build(), torch.randn(7, *shape)
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    models = params + 0.3 * torch.randn(N, layout.d)
    outputs, inputs = [], []
    for row in (params, *models):
        twin = copy.deepcopy(model).eval()
        twin.load_state_dict(layout.unflatten(row))
        seen = []
        for part in set(twin.modules()):
            if isinstance(part, nn.ReLU | nn.ReLU6 | nn.GELU | nn.SiLU | nn.LeakyReLU):
                part.register_forward_pre_hook(lambda _, args, seen=seen: seen.append(args[0]))
        outputs.append(twin(x).sum().detach())
        inputs.append([z.detach() for z in seen])
    mlp = PlainMLP.of(model, x)
    pieces, steps = ([list(row.split(list(layout.sizes))) for row in rows] for rows in (models, models - params))
    held = {
        "models": fw.Updates.of(models, params, layout.measured),
        "deltas": fw.Updates.of(models - params),
        "layers": fw.Updates.of(pieces, params),
        "layers of deltas": fw.Updates.of(steps),
        "flat rows": fw.Updates.of(list(models.numpy()), params),
        "float64": fw.Updates.of(models.double(), params),
        "columns first": fw.Updates.of(models.T.contiguous().T, params),
        "mixed": Mixed(fw.Updates.of(models.flip(0), params), np.eye(N)[::-1].copy()),
    }
    for form, updates in held.items():
        groups = list(mlp.each(cohort(updates, params), x, lambda z: z.clone()))
        sums, *layers = (torch.cat(column) for column in zip(*groups, strict=True))
        assert torch.allclose(sums, torch.stack(outputs), atol=1e-4), form
        for k, layer in enumerate(layers):
            assert torch.allclose(layer, torch.stack([seen[k] for seen in inputs]), atol=1e-5), (form, k)
        assert len(layers) == len(inputs[0])
        for once, part in zip(
            mlp.together(cohort(updates, params), x, lambda z: z.clone()), [sums, *layers], strict=True
        ):
            assert torch.allclose(once, part, atol=1e-4), form
    assert all(p.requires_grad and p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_anything_else_is_no_chain(name):
    build, shape = OTHERS[name]
    assert PlainMLP.of(build(), torch.randn(4, *shape)) is None


def test_a_model_that_somebody_listens_to_says_so():
    model = plain()
    mlp = PlainMLP.of(model, torch.randn(4, 2, 3))
    assert mlp.unheard
    handle = model[1].register_forward_hook(lambda *_: None)
    assert not mlp.unheard
    handle.remove()
    assert mlp.unheard


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("n", [1, 10, 50])
def test_on_a_gpu_whoever_sends_the_global_model_is_not_apart_and_others_are_as_on_a_cpu(n):
    torch.manual_seed(0)
    model, x = plain(), torch.randn(32, 2, 3)
    params = Layout.of(model).flatten(model.state_dict())
    models = params + 0.3 * torch.randn(n, len(params))
    models[0] = params
    found = []
    for device in ("cpu", "cuda"):
        server = fw.Server(copy.deepcopy(model).to(device), x.to(device))
        signal = make("signal", "divergence", probe=32).equip(server)
        base = params.to(device)
        found.append(signal(cohort(fw.Updates.of(models.to(device), base), base)).values)
    assert found[1][0] == 0
    assert np.allclose(*found, atol=1e-3)
