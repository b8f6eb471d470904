"""Local training: the sequential reference against plain loops, and the stacked form against the reference."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedwarden.core.seeds import numpy_rng
from fedwarden.models.layout import Layout
from fedwarden.sim.models import build_model
from fedwarden.sim.training.optimizer import LocalTraining
from fedwarden.sim.training.stacked import Stacked
from fedwarden.sim.training.trainer import Shard, train_sequential, train_stacked

SEED, ROUND = 11, 3
SIZES = (23, 7, 40, 16, 3)  # with batches of 8: 3, 1, 5, 2 and 1 steps an epoch, most with a partial last batch
SGD = LocalTraining(lr=0.1, batch_size=8, epochs=2)
TRAININGS = {
    "sgd": SGD,
    "momentum": replace(SGD, momentum=0.9),
    "weight decay": replace(SGD, momentum=0.5, weight_decay=0.01),
    "fedprox": replace(SGD, proximal=0.5, momentum=0.9, weight_decay=0.01),
    "adam": LocalTraining("adam", lr=1e-3, batch_size=8, epochs=1),
    "adam fedprox": LocalTraining("adam", lr=1e-3, batch_size=8, epochs=1, proximal=0.1, weight_decay=0.01),
}


pytestmark = pytest.mark.usefixtures("one_thread")


def shards_of(shape, classes, sizes=SIZES):
    """Clients of unequal sizes whose rows lie scattered over one tensor."""
    total = sum(sizes)
    g = torch.Generator().manual_seed(5)
    x, y = torch.rand(total, *shape, generator=g), torch.randint(classes, (total,), generator=g)
    rows = np.split(np.random.default_rng(5).permutation(total), np.cumsum(sizes)[:-1])
    return [Shard(f"client {i}", x, y, np.sort(r)) for i, r in enumerate(rows)]


def case(name, shape, classes=4, **options):
    model = build_model(name, options, shape, classes, SEED)
    layout = Layout.of(model)
    return model, layout, layout.flatten(model.state_dict())


def sequential(model, layout, params, shards, training):
    out = torch.full((len(shards), layout.d), torch.nan)
    train_sequential(model, layout, params, shards, training, ROUND, SEED, out)
    return out


def stacked(model, layout, params, shards, training, group):
    out = torch.full((len(shards), layout.d), torch.nan)
    form = Stacked.of(model)
    assert form is not None
    for a in range(0, len(shards), group):
        part = slice(a, a + group)
        train_stacked(form, layout, params, shards[part], training, ROUND, SEED, out[part])
    return out


def steps_by_hand(shard, training):
    """Every epoch a fresh order of the client's rows, cut into batches."""
    rng = numpy_rng(SEED, "batches", ROUND, shard.client_id)
    for _ in range(training.epochs):
        order = rng.permutation(shard.rows)
        for a in range(0, len(order), training.batch_size):
            yield torch.from_numpy(order[a : a + training.batch_size])


def train_by_hand(model, layout, params, shard, t):
    """SGD with momentum, or Adam, written out: g + decay w + mu (w - w_0), then the step."""
    start = [p.clone() for p in layout.unflatten(params).values()]
    w = [p.clone() for p in start]
    m, v = [torch.zeros_like(p) for p in w], [torch.zeros_like(p) for p in w]
    for k, index in enumerate(steps_by_hand(shard, t), start=1):
        leaves = [p.clone().requires_grad_() for p in w]
        logits = torch.func.functional_call(model, dict(zip(layout.names, leaves, strict=True)), shard.x[index])
        grads = torch.autograd.grad(F.cross_entropy(logits, shard.y[index]), leaves)
        for i, g in enumerate(grads):
            g = g + t.weight_decay * w[i] + t.proximal * (w[i] - start[i])
            if t.optimizer == "sgd":
                m[i] = t.momentum * m[i] + g
                w[i] = w[i] - t.lr * m[i]
            else:
                m[i] = 0.9 * m[i] + 0.1 * g
                v[i] = 0.999 * v[i] + 0.001 * g * g
                w[i] = w[i] - t.lr * (m[i] / (1 - 0.9**k)) / ((v[i] / (1 - 0.999**k)).sqrt() + 1e-8)
    return torch.cat([p.flatten() for p in w])


@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_sequential_is_a_plain_loop(training):
    model, layout, params = case("mlp", (6,), hidden=[5])
    shards = shards_of((6,), 4)
    out = sequential(model, layout, params, shards, training)
    for shard, row in zip(shards, out, strict=True):
        torch.testing.assert_close(row, train_by_hand(model, layout, params, shard, training), rtol=0, atol=2e-6)


@pytest.mark.parametrize("group", [1, 2, len(SIZES)])
@pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS)
def test_stacked_is_sequential_for_an_mlp(training, group):
    given = (*case("mlp", (6,), hidden=[9, 5]), shards_of((6,), 4), training)
    torch.testing.assert_close(stacked(*given, group), sequential(*given), rtol=0, atol=1e-5)


@pytest.mark.parametrize("group", [1, 2, len(SIZES)])
@pytest.mark.parametrize("training", ["sgd", "momentum", "fedprox", "adam"])
def test_stacked_is_sequential_with_dropout(training, group):
    given = (*case("pid_made_cnn", (2, 17, 16), channels=[3, 4], hidden=[12, 8]), shards_of((2, 17, 16), 4))
    training = TRAININGS[training]
    a, b = stacked(*given, training, group), sequential(*given, training)
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    model = given[0]
    for layer in model:
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    assert (sequential(*given, training) - b).abs().max() > 1e-3  # so dropout was on


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("training", ["sgd", "fedprox", "adam"])
def test_the_global_parameters_are_never_changed(count, training):
    model, layout, params = case("mlp", (6,), hidden=[5])
    before, shards = params.clone(), shards_of((6,), 4)[:count]
    form, out = Stacked.of(model), torch.empty(count, layout.d)
    for train, what in ((train_sequential, model), (train_stacked, form)):
        train(what, layout, params, shards, TRAININGS[training], ROUND, SEED, out)
        assert torch.equal(params, before)
        assert not torch.equal(out[0], before)


@pytest.mark.parametrize("training", ["momentum", "adam"])
def test_a_client_does_not_depend_on_its_group(training):
    model, layout, params = case("pid_made_cnn", (1, 16, 16), channels=[2, 3], hidden=[8, 6])
    shards, t = shards_of((1, 16, 16), 4), TRAININGS[training]
    together = stacked(model, layout, params, shards, t, len(shards))
    backwards = stacked(model, layout, params, shards[::-1], t, len(shards)).flip(0)
    torch.testing.assert_close(backwards, together, rtol=0, atol=1e-6)
    for i, shard in enumerate(shards):
        alone = stacked(model, layout, params, [shard], t, 1)
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-6)


def test_a_client_does_not_depend_on_who_was_trained_before_it():
    """Sequential training shares one module: nothing may remain in it."""
    model, layout, params = case("resnet18", (1, 8, 8), width=2)
    shards = shards_of((1, 8, 8), 4, sizes=(8, 12, 5))
    t = replace(SGD, momentum=0.9)
    together = sequential(model, layout, params, shards, t)
    for i in (2, 0, 1):
        assert torch.equal(sequential(model, layout, params, [shards[i]], t)[0], together[i])


def test_batchnorm_goes_the_sequential_way_and_its_buffers_travel():
    model, layout, params = case("resnet18", (1, 8, 8), width=2)
    assert Stacked.of(model) is None
    shards = shards_of((1, 8, 8), 4, sizes=(20, 9))
    t = LocalTraining(lr=0.05, momentum=0.9, batch_size=7, epochs=2)
    out = sequential(model, layout, params, shards, t)
    for shard, row in zip(shards, out, strict=True):
        model.load_state_dict(layout.unflatten(params))
        model.train()
        optimizer = torch.optim.SGD(model.parameters(), lr=t.lr, momentum=t.momentum)
        steps = list(steps_by_hand(shard, t))
        for index in steps:
            optimizer.zero_grad()
            F.cross_entropy(model(shard.x[index]), shard.y[index]).backward()
            optimizer.step()
        want, got = model.state_dict(), layout.unflatten(row)
        for name in want:
            torch.testing.assert_close(got[name], want[name], rtol=0, atol=1e-6)
        counters = [got[name] for name in got if name.endswith("num_batches_tracked")]
        assert counters
        assert all(c.dtype == torch.int64 and c == len(steps) for c in counters)


def test_what_is_frozen_stays_as_it_was():
    """A pre-trained layer that does not ask for gradients is not trained, whichever way is taken."""
    model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4))
    model[0].requires_grad_(False)
    layout = Layout.of(model)
    params, frozen = layout.flatten(model.state_dict()), 6 * 5 + 5
    shards = shards_of((6,), 4)
    assert Stacked.of(model) is None
    out = sequential(model, layout, params, shards, SGD)
    assert torch.equal(out[:, :frozen], params[:frozen].expand(len(shards), -1))
    assert not torch.equal(out[:, frozen:], params[frozen:].expand(len(shards), -1))


def test_batchnorm_trains_where_a_single_sample_is_left_out():
    model, layout, params = case("resnet18", (1, 8, 8), width=2)
    shards = shards_of((1, 8, 8), 4, sizes=(17,))
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        sequential(model, layout, params, shards, SGD)
    (row,) = sequential(model, layout, params, shards, replace(SGD, smallest_batch=2))
    trained = layout.unflatten(row)
    assert {int(trained[k]) for k in trained if k.endswith("num_batches_tracked")} == {2 * SGD.epochs}
