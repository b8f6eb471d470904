"""Leave-one-out losses against models that are averaged, loaded and run one by one."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.models.layout import Layout
from fedwarden.signals.harm import Harm

pytestmark = pytest.mark.usefixtures("one_thread")

COUNTS = np.array([10.0, 20.0, 5.0, 10.0, 40.0])


def mlp():
    return nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 3))


def normed():
    return nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 3))


def federation(make_model, n=5, scale=0.3, trusted=()):
    torch.manual_seed(0)
    model = make_model()
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    rows = scale * torch.randn(n, layout.d)
    for (_, start, stop), parameter in zip(layout.ranges(), layout.is_parameter, strict=True):
        if not parameter:
            rows[:, start:stop] = rows[:, start:stop].abs()
    server = fw.Server(model, torch.randn(40, 6), torch.randint(3, (40,)))
    updates = fw.Updates.of(rows, measured=layout.measured)
    cohort = fw.Cohort(1, tuple("abcdefgh"[:n]), updates, COUNTS[:n], params, np.asarray(trusted, bool))
    return server, cohort, rows, layout


@torch.no_grad()
def loss_of(server, layout, params):
    model = copy.deepcopy(server.model).eval()
    model.load_state_dict(layout.unflatten(params))
    return float(F.cross_entropy(model(server.probe), server.labels))


def by_hand(server, cohort, rows, layout, within):
    """The loss of the weighted mean of some, less that without each; for those who are not in it, with it less without.

    Without a client the weights of the others stay as they were. What the median client of the mean does as well is
    taken off where it is harm.
    """

    def loss(members):
        total = COUNTS[within].sum()
        mean = torch.tensor(COUNTS[members] / total).float() @ rows[members] if members else torch.zeros(layout.d)
        for (_, start, stop), parameter in zip(layout.ranges(), layout.is_parameter, strict=True):
            if not parameter:  # what is not trained is the median of all
                mean[start:stop] = torch.tensor(np.median(rows[:, start:stop].numpy(), axis=0))
        return loss_of(server, layout, cohort.params + mean)

    found = [
        loss(within) - loss([j for j in within if j != i]) if i in within else loss([*within, i]) - loss(within)
        for i in range(len(rows))
    ]
    return np.array(found) - max(0.0, np.median([found[i] for i in within]))


@pytest.mark.parametrize("make_model", [mlp, normed])
@pytest.mark.parametrize("within", [[0, 1, 2, 3, 4], [0, 2, 4], [1]])
def test_harm_is_the_loss_with_a_client_less_that_without_it(make_model, within):
    trusted = [i in within for i in range(5)]
    server, cohort, rows, layout = federation(make_model, trusted=trusted)
    got = Harm(shorten=None).equip(server)(cohort)
    np.testing.assert_allclose(got, by_hand(server, cohort, rows, layout, within), atol=2e-5)


def test_long_updates_count_as_the_guard_counts_them():
    server, cohort, rows, layout = federation(mlp)
    rows[2] *= 10.0
    cohort = replace(cohort, updates=fw.Updates.of(rows.clone()))
    lengths = rows.norm(dim=1)
    rows *= (1.5 * lengths.sort().values[2] / lengths).clamp(max=1.0)[:, None]
    got = Harm(shorten=1.5).equip(server)(cohort)
    np.testing.assert_allclose(got, by_hand(server, cohort, rows, layout, [0, 1, 2, 3, 4]), atol=2e-5)


def test_who_turns_the_answers_over_does_harm_and_who_corrects_them_helps():
    server, cohort, _, layout = federation(mlp)
    with torch.no_grad():
        server = replace(server, labels=server.model(server.probe).argmax(1))
    rows = 0.01 * torch.randn(5, layout.d)
    rows[3, -30:] -= 2.0 * cohort.params[-30:]  # the last layer, 27 weights and 3 biases
    rows[1, -30:] += 2.0 * cohort.params[-30:]
    found = Harm(shorten=None).equip(server)(replace(cohort, updates=fw.Updates.of(rows), num_examples=np.ones(5)))
    assert found.argmax() == 3
    assert found.argmin() == 1
    assert found[1] < 0 < found[3]


def test_a_model_that_gives_no_numbers_is_very_bad_and_no_nan():
    server, cohort, rows, _ = federation(mlp)
    rows[0] = 1e30
    found = Harm(shorten=None).equip(server)(replace(cohort, updates=fw.Updates.of(rows)))
    assert np.isfinite(found).all()
    assert found.argmax() == 0
    assert (found[1:] == 0).all()  # no better and no worse without them


def test_harm_that_most_clients_do_accuses_none_of_them():
    """Four of five step up the gradient, as clients do that lack a class which the samples have."""
    server, cohort, *_ = federation(mlp)
    F.cross_entropy(server.model(server.probe), server.labels).backward()
    gradient = torch.cat([p.grad.reshape(-1) for p in server.model.parameters()])
    rows = 0.01 * gradient * torch.tensor([1.0, 1.0, 1.0, 1.0, -1.0])[:, None]
    cohort = replace(cohort, updates=fw.Updates.of(rows), num_examples=np.ones(5))
    found = Harm(shorten=None).equip(server)(cohort)
    np.testing.assert_allclose(found[:4], 0.0, atol=1e-6)
    assert found[4] < 0


def test_a_class_that_the_samples_lack_is_no_answer_and_is_told_of_once():
    """Teaching the model the absent class is no harm, and the first round names the class."""
    server, cohort, *_ = federation(mlp)
    server = replace(server, labels=server.labels % 2)
    rows = torch.zeros(5, len(cohort.params))
    rows[:, -3:] = torch.tensor([0.0, 0.0, 0.1])
    rows[3, -1] = 50.0  # the bias of class 2, of which there is no sample
    cohort = replace(cohort, updates=fw.Updates.of(rows), num_examples=np.ones(5))
    reading = Harm(shorten=None).equip(server)(cohort)
    np.testing.assert_allclose(reading.values, 0.0, atol=1e-6)
    assert (reading.warning.kind, reading.warning.values["names"]) == ("probe_lacks", ("2",))
    assert isinstance(Harm().equip(server)(replace(cohort, round=2)), np.ndarray)
    full = replace(server, labels=torch.arange(40) % 3)
    assert Harm(shorten=None).equip(full)(cohort)[3] > 0.1


def test_what_it_needs():
    server, cohort, *_ = federation(mlp)
    for poor in (fw.Server(), fw.Server(server.model), fw.Server(server.model, server.probe)):
        with pytest.raises(ConfigError, match="harm needs a server with a model and labelled samples"):
            Harm().equip(poor)
    with pytest.raises(ValueError, match=r"give fw.Server\(model=..., probe=..., labels=...\)"):
        Harm()(cohort)
    with pytest.raises(ValueError, match=r"set Cohort\.params"):
        Harm().equip(server)(replace(cohort, params=None))
    with pytest.raises(ConfigError, match="needs at least 1 sample"):
        make("signal", "harm", probe=0)
