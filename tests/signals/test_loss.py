"""The loss on the server's samples against one model at a time."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.models.layout import Layout
from fedwarden.signals.loss import ProbeLoss, client_losses
from fedwarden.sim.models import build_model

pytestmark = pytest.mark.usefixtures("one_thread")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))


def normed():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))


def cnn():
    return build_model("pid_made_cnn", {}, (1, 16, 16), 3, seed=0)


MODELS = {"mlp": (mlp, (6,)), "batch norm": (normed, (6,)), "cnn": (cnn, (1, 16, 16))}


def federation(name, n=5, scale=0.3, samples=40):
    """A server, the cohort of a round, and the model of every client."""
    make, shape = MODELS[name]
    model, layout = make(), Layout.of(make())
    params = layout.flatten(model.state_dict())
    torch.manual_seed(1)
    rows = scale * torch.randn(n, layout.d)
    for start, size, parameter in zip(np.cumsum([0, *layout.sizes]), layout.sizes, layout.is_parameter, strict=False):
        if not parameter:
            rows[:, start : start + size] = rows[:, start : start + size].abs()
    clients = []
    for row in rows:
        clients.append(copy.deepcopy(model))
        clients[-1].load_state_dict(layout.unflatten(params + row))
    server = fw.Server(model, torch.randn(samples, *shape), torch.randint(3, (samples,)))
    updates = fw.Updates.of(rows, measured=layout.measured)
    cohort = fw.Cohort(1, tuple("abcdefgh"[:n]), updates, np.full(n, 10.0), params)
    return server, cohort, clients


@torch.no_grad()
def losses(server, clients, probe):
    return np.array(
        [float(F.cross_entropy(c.eval()(server.probe[:probe]), server.labels[:probe])) for c in clients]
    )  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("probe", [16, 128])
def test_the_score_is_the_log_of_the_loss_over_the_median_one(name, probe):
    server, cohort, clients = federation(name)
    want = np.log(losses(server, clients, probe))
    got = ProbeLoss(probe).equip(server)(cohort)
    np.testing.assert_allclose(got, want - np.median(want), atol=1e-4)


def test_first_comes_the_global_model_and_it_is_left_as_it_was():
    server, cohort, clients = federation("batch norm")
    server.model.train()
    before = {k: v.clone() for k, v in server.model.state_dict().items()}
    found = client_losses(cohort, server.model, server.probe, server.labels)
    assert server.model.training
    assert all(torch.equal(v, before[k]) for k, v in server.model.state_dict().items())
    np.testing.assert_allclose(found, losses(server, [copy.deepcopy(server.model), *clients], 40), rtol=1e-4)


def test_a_loss_of_nothing_is_finite():
    model = nn.Linear(1, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1e4], [1e4]]))
        model.bias.zero_()
    server = fw.Server(model, torch.tensor([[1.0], [-1.0]]), torch.tensor([1, 0]))
    params = Layout.of(model).flatten(model.state_dict())
    cohort = fw.Cohort(1, ("a", "b"), fw.Updates.of(torch.zeros(2, 4)), np.ones(2), params)
    assert ProbeLoss().equip(server)(cohort).tolist() == [0.0, 0.0]


def test_what_it_needs():
    server, cohort, _ = federation("mlp")
    for poor in (fw.Server(), fw.Server(server.model), fw.Server(server.model, server.probe)):
        with pytest.raises(ConfigError, match="probe_loss needs a server with a model and labelled samples"):
            ProbeLoss().equip(poor)
    with pytest.raises(ValueError, match=r"give fw.Server\(model=..., probe=..., labels=...\)"):
        ProbeLoss()(cohort)
