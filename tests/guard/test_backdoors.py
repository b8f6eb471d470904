"""Backdoors in the new model: found, unlearned and kept out; nothing is done where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.reported import TRIGGER
from fedwarden.guard.backdoors import EVERY, Cleaner, suits
from fedwarden.models.layout import Layout

SIDE, TARGET = 24, 7


def marked(x):
    """A bright square of 4 x 4 pixels in a corner."""
    out = x.clone()
    out[:, :, -4:, -4:] = 1.0
    return out


@pytest.fixture(scope="module")
def digits():
    """Real digits at three times their size."""
    data = load_digits()
    x = torch.from_numpy(data.images / 16).float().repeat_interleave(3, 1).repeat_interleave(3, 2)[:, None]
    return x, torch.from_numpy(data.target).long()


def trained(x, y, epochs=25):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(epochs):
        for part in torch.randperm(len(x)).split(128):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    return model.eval()


@pytest.fixture(scope="module")
def models(digits):
    """A network trained on the first 1,200 digits, and one for which a third of them also came with a mark."""
    x, y = digits[0][:1200], digits[1][:1200]
    clean = trained(x, y)
    extra = marked(x[:400])
    return clean, trained(torch.cat([x, extra]), torch.cat([y, torch.full((400,), TARGET)]))


def accuracy(model, x, y):
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


def success(model, x, y):
    others = y != TARGET
    return accuracy(model, marked(x[others]), torch.full((int(others.sum()),), TARGET))


def flat(model):
    return Layout.of(model).flatten(model.state_dict())


def loaded(model, params):
    model.load_state_dict({k: v.clone() for k, v in Layout.of(model).unflatten(params).items()})
    return model


def fresh():
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 64), nn.ReLU(), nn.Linear(64, 10))


@pytest.mark.parametrize("held", ["images", "noise"])
def test_a_taught_mark_is_found_and_unlearned(digits, models, held):
    x, y = digits
    _, poisoned = models
    assert success(poisoned, x[1400:], y[1400:]) > 0.95
    rng = torch.Generator().manual_seed(0)
    noise = x.mean() + x.std() * torch.randn(200, 1, SIDE, SIDE, generator=rng)
    cleaner = Cleaner.of(fw.Server(model=fresh(), probe=x[1200:1400] if held == "images" else noise))
    params, known, removed = cleaner.clean(flat(poisoned), None, EVERY)
    assert {r.label for r in removed} == {TARGET} == set(known.labels.tolist())
    assert all(r.size < r.usual / 2 for r in removed)
    cured = loaded(fresh(), params)
    assert success(cured, x[1400:], y[1400:]) < 0.2
    price = 0.03 if held == "images" else 0.1  # noise says less of what must stay
    assert accuracy(cured, x[1400:], y[1400:]) > accuracy(poisoned, x[1400:], y[1400:]) - price

    again, _, later = cleaner.clean(flat(poisoned), known, EVERY + 1)  # no search in this round: it is known
    assert later == []
    assert success(loaded(fresh(), again), x[1400:], y[1400:]) < 0.2


@pytest.mark.parametrize("held", ["images", "noise"])
def test_nothing_is_found_in_a_clean_model_and_it_stays_bit_for_bit(digits, models, held):
    x, _ = digits
    rng = torch.Generator().manual_seed(0)
    noise = x.mean() + x.std() * torch.randn(200, 1, SIDE, SIDE, generator=rng)
    cleaner = Cleaner.of(fw.Server(model=fresh(), probe=x[1200:1400] if held == "images" else noise))
    before = flat(models[0])
    params, known, removed = cleaner.clean(before, None, EVERY)
    assert (removed, known) == ([], None)
    assert torch.equal(params, before)


def cohort(t, params, poisoned, clean):
    """Three of ten clients send the poisoned model, the others the clean one, each with noise of its own."""
    rng = np.random.default_rng(t)
    rows = [(poisoned if i < 3 else clean) - params for i in range(10)]
    rows = [row + 1e-3 * torch.from_numpy(rng.normal(size=len(row))).float() for row in rows]
    return fw.Cohort(t, [f"c{i}" for i in range(10)], fw.Updates.of(torch.stack(rows)), np.full(10, 100.0), params)


def test_a_warden_names_the_class_and_shows_which_clients_teach_it(digits, models):
    x, _ = digits
    clean, poisoned = (flat(m) for m in models)
    warden = fw.Warden(backdoors=True).equip(fw.Server(model=fresh(), probe=x[1200:1400]))
    outcome = warden.step(cohort(EVERY, poisoned, poisoned, clean))  # the global model has learned it
    if not warden.triggers:  # most of the clients teach the clean one
        outcome = warden.step(cohort(2 * EVERY, poisoned, poisoned, poisoned))
    assert next(n.values["label"] for n in outcome.record.notes if n.kind == "trigger_removed") == TARGET
    state = warden.state_dict()
    later = fw.Warden(backdoors=True).equip(fw.Server(model=fresh(), probe=x[1200:1400]))
    later.load_state_dict(state)
    rounds = [w.step(cohort(11, clean, poisoned, clean)) for w in (warden, later)]
    gains = rounds[0].record.reported[TRIGGER]
    assert min(gains[f"c{i}"] for i in range(3)) > max(gains[f"c{i}"] for i in range(3, 10)) + 1.0
    assert torch.equal(rounds[0].update, rounds[1].update)  # what was found goes on after a restart


def test_a_client_that_sends_nan_does_not_make_marks_be_forgotten(digits, models):
    clean, poisoned = (flat(m) for m in models)
    cleaner = Cleaner.of(fw.Server(model=fresh(), probe=digits[0][1200:1400]))
    _, known, _ = cleaner.clean(poisoned, None, EVERY)
    came = cohort(6, clean, poisoned, clean)
    rows = torch.stack([torch.cat(came.updates.sent(i)) for i in range(10)])
    rows[9] = torch.nan
    gains, left = cleaner.gains(fw.Cohort(6, came.client_ids, fw.Updates.of(rows), np.full(10, 100.0), clean), known)
    assert left is not None
    assert TARGET in left.labels.tolist()
    assert np.isfinite(gains).all()


def test_what_suits_and_what_does_not(digits):
    x, _ = digits
    images = x[:8]
    assert suits(fw.Server(model=fresh(), probe=images))
    assert not suits(fw.Server(probe=images))
    assert not suits(fw.Server(model=fresh()))
    assert not suits(fw.Server(model=nn.Linear(4, 3), probe=torch.zeros(8, 4)))  # a table
    assert not suits(fw.Server(model=nn.Sequential(nn.Conv2d(1, 3, SIDE), nn.Flatten()), probe=images))
    two = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 2))
    assert not suits(fw.Server(model=two, probe=images))  # the median of two sizes says nothing


def test_it_is_part_of_auto_and_can_be_switched_off(digits):
    server = fw.Server(model=fresh(), probe=digits[0][:16])
    assert fw.Warden.preset("auto").equip(server).cleaner is not None
    assert fw.Warden.preset("auto", backdoors=False).equip(server).cleaner is None
    assert fw.Warden.preset("watch").equip(server).cleaner is None
    with pytest.raises(ConfigError):
        fw.Warden.preset("auto", backdoor=False)
