"""The geometric divergence: exact counts, invariances, a case by hand, and the signal against one model at a time."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.models.layout import Layout
from fedwarden.signals.divergence import Divergence, divergence, hierarchical
from fedwarden.sim.models import build_model

KINDS = ("absolute", "relative", "cosine")
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


pytestmark = pytest.mark.usefixtures("one_thread")


def mlp(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 7), nn.ReLU(), nn.Linear(7, 3)).to(dtype)


class Encoder(nn.Module):
    """Tokens through a transformer layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens):
        return self.head(self.layer(self.embed(tokens)).mean(dim=1))


MODELS = {
    "mlp": (mlp, lambda: torch.randn(12, 6)),
    "bfloat16": (lambda: mlp(dtype=torch.bfloat16), lambda: torch.randn(12, 6)),
    "cnn": (lambda: build_model("pid_made_cnn", {}, (1, 16, 16), 4, seed=0), lambda: torch.randn(12, 1, 16, 16)),
    "residual": (lambda: build_model("resnet18", {"width": 4}, (3, 8, 8), 4, seed=0), lambda: torch.randn(12, 3, 8, 8)),
    "transformer": (Encoder, lambda: torch.randint(11, (12, 5))),
}


def by_hand():
    """Samples 1 and -1 through two layers of two units.

    Model a: units x and -x, then the two as they are; so the samples differ in both bits of both layers. Model b: x
    and x + 9, so they differ in one bit of two; its second layer sees (1, 10) and (0, 8), all on.
    """
    a, b = (nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2), nn.ReLU()) for _ in range(2))
    layers = {
        a: ([[1.0], [-1.0]], [0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [0.0, 0.0]),
        b: ([[1.0], [1.0]], [0.0, 9.0], [[1.0, 1.0], [0.0, 1.0]], [0.0, 0.0]),
    }
    with torch.no_grad():
        for model, (w, c, v, d) in layers.items():
            for target, value in zip(model.parameters(), (w, c, v, d), strict=True):
                target.copy_(torch.tensor(value))
    return a, b, torch.tensor([[1.0], [-1.0]])


def test_a_case_by_hand():
    a, b, x = by_hand()
    # off the diagonal, a has 0 and 0; b has 1/2 and 1
    first, second = math.sqrt(2 * 0.5**2) / 2, math.sqrt(2 * 1.0**2) / 2
    for gamma in (0.0, 1.0, 2.5):
        assert divergence(a, b, x, gamma) == pytest.approx(first + second * math.exp(-gamma * first), abs=1e-6)
    first, second = math.sqrt(0.5) / math.sqrt(2.5), math.sqrt(2) / 2
    assert divergence(a, b, x, 0.0, "relative") == pytest.approx(first + second, abs=1e-6)
    first, second = 1 - 2 / math.sqrt(2 * 2.5), 1 - 2 / math.sqrt(2 * 4)
    assert divergence(a, b, x, 0.0, "cosine") == pytest.approx(first + second, abs=1e-6)
    assert fw.divergence is divergence


@pytest.mark.parametrize("name", MODELS)
def test_a_model_does_not_diverge_from_itself(name):
    build, probe = MODELS[name]
    model, x = build(), probe()
    for kind in KINDS:
        assert divergence(model, copy.deepcopy(model), x, affinity=kind) == pytest.approx(0.0, abs=1e-5)
    assert divergence(model, model, x) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_order_of_units_and_the_scale_of_a_layer_do_not_matter(kind):
    a, b, x = mlp(0), mlp(1), torch.randn(20, 6)
    want = divergence(a, b, x, affinity=kind)
    assert want > 0.01
    order = torch.randperm(9)
    moved = copy.deepcopy(a)
    with torch.no_grad():
        moved[0].weight.copy_(4 * a[0].weight[order])  # powers of two, so that no bit turns by rounding
        moved[0].bias.copy_(4 * a[0].bias[order])
        moved[2].weight.copy_(a[2].weight[:, order] / 4)
    assert divergence(moved, b, x, affinity=kind) == pytest.approx(want, rel=1e-6)
    assert divergence(moved, a, x, affinity=kind) == pytest.approx(0.0, abs=1e-6)


def test_models_of_other_depth_are_refused():
    with pytest.raises(ValueError, match="equally many layers of rectified units; got 2 and 1"):
        divergence(mlp(), nn.Sequential(nn.Linear(6, 2), nn.ReLU()), torch.randn(4, 6))


def clients(model, n, far=3, seed=0):
    """n models near the given one, the third farther away; running variances stay above zero."""
    layout, rng = Layout.of(model), torch.Generator().manual_seed(seed)
    params = layout.flatten(model.state_dict())
    steps = torch.zeros(n, layout.d)
    for a, b in layout.measured:
        steps[:, a:b] = 0.02 * torch.randn(n, b - a, generator=rng)
    steps[2] *= far
    return layout, params, params + steps.to(params.device)


def cohort(updates, params):
    return fw.Cohort(1, tuple(map(str, range(len(updates)))), updates, np.ones(len(updates)), params)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", MODELS)
def test_the_signal_is_the_divergence_of_each_client_from_the_global_model(name, device):
    torch.manual_seed(3)
    build, probe = MODELS[name]
    model, x = build().to(device), probe().to(device)
    layout, params, models = clients(model, 5)
    twins = [copy.deepcopy(model) for _ in models]
    for twin, row in zip(twins, models, strict=True):
        twin.load_state_dict(layout.unflatten(row))
    for kind in KINDS:
        signal = Divergence(gamma=0.5, affinity=kind).equip(fw.Server(model, x))
        reading = signal(cohort(fw.Updates.of(models, params, layout.measured), params))
        want = [divergence(twin, model, x, 0.5, kind) for twin in twins]
        tolerance = {"mlp": 1e-6, "bfloat16": 0.05}.get(name, 0.01)  # a bit may turn where sums are rounded otherwise
        np.testing.assert_allclose(reading.values, want, atol=tolerance)
        assert reading.values.dtype == np.float64
        parts = np.stack(list(reading.parts.values()), axis=1)
        np.testing.assert_allclose(hierarchical(parts, 0.5), reading.values)
    assert next(iter(reading.parts)).startswith("layer 1")


@pytest.mark.parametrize("name", MODELS)
def test_a_client_that_sends_the_global_model_back_has_not_moved_at_all(name):
    build, probe = MODELS[name]
    model, x = build(), probe()
    layout, params, models = clients(model, 11)
    models[[0, 5, 10]] = params
    reading = Divergence().equip(fw.Server(model, x))(cohort(fw.Updates.of(models, params, layout.measured), params))
    assert (reading.values == 0).tolist() == [i in (0, 5, 10) for i in range(11)]


@pytest.mark.parametrize("name", ["mlp", "residual"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38])
def test_a_client_without_numbers_has_no_score_and_the_others_keep_theirs(name, value):
    build, probe = MODELS[name]
    torch.manual_seed(0)
    model, x = build(), probe()
    layout, params, models = clients(model, 5)
    signal = Divergence().equip(fw.Server(model, x))
    want = signal(cohort(fw.Updates.of(models, params, layout.measured), params)).values
    models[1, layout.measured[-1][0]] = value  # a single weight of the last layer
    got = signal(cohort(fw.Updates.of(models, params, layout.measured), params))
    assert np.isnan(got.values[1])
    assert all(np.isnan(part[1]) for part in got.parts.values())
    np.testing.assert_allclose(np.delete(got.values, 1), np.delete(want, 1), atol=1e-6)


def test_a_dead_unit_made_by_a_weight_that_is_no_number_is_seen_too():
    model, x = mlp(), torch.randn(12, 6)
    _, params, models = clients(model, 3)
    models[0, 6 * 9] = -math.inf  # a bias that switches a unit off; the outputs stay finite
    reading = Divergence().equip(fw.Server(model, x))(cohort(fw.Updates.of(models, params), params))
    assert np.isnan(reading.values).tolist() == [True, False, False]


def test_a_second_look_at_the_same_updates_runs_no_model():
    model, x = mlp(), torch.randn(12, 6)
    _, params, models = clients(model, 4)
    signal, first = Divergence().equip(fw.Server(model, x)), cohort(fw.Updates.of(models, params), params)
    relative, fewer = (Divergence(**o).equip(signal.server) for o in ({"gamma": 0.5, "relative": True}, {"probe": 6}))
    reading, runs = signal(first), []
    handle = model.register_forward_hook(lambda *_: runs.append(1))
    np.testing.assert_array_equal(signal(cohort(first.updates, params)).values, reading.values)
    near = relative(cohort(first.updates, params)).values  # one like it shares what was seen
    assert np.median(near) == pytest.approx(0, abs=1e-12)
    assert not runs
    fewer(cohort(first.updates, params))
    assert runs
    runs.clear()
    signal(cohort(fw.Updates.of(models, params), params))
    handle.remove()
    assert runs


def test_what_is_missing_is_named():
    model, x = mlp(), torch.randn(12, 6)
    _, params, models = clients(model, 3)
    with pytest.raises(ValueError, match=r"equip it with fw\.Server\(model=\.\.\., probe=\.\.\.\)"):
        Divergence()(cohort(fw.Updates.of(models, params), params))
    for server in (fw.Server(), fw.Server(model=model), fw.Server(probe=x)):
        with pytest.raises(ConfigError, match="a model and a probe; synthetic_probe makes one"):
            Divergence().equip(server)
    with pytest.raises(ValueError, match="no rectified unit found in Linear"):
        Divergence().equip(fw.Server(nn.Linear(6, 2), x))
    with pytest.raises(ValueError, match="at least 2 samples to compare; got 1"):
        Divergence().equip(fw.Server(model, x[:1]))
