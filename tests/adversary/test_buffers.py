"""What no distance sees (running statistics, counters), what a new model must give, and types of numbers."""

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.models.layout import Layout

PRESETS = ["none", "pid_made", "auto"]


def first_norm():
    """BatchNorm that sees the inputs, of which some have a small variance."""
    model = nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8), nn.Linear(8, 3))
    model[0].running_var.copy_(torch.tensor([1e-6, 1e-4, 0.01, 1.0, 9.0, 400.0]))
    return model


def cohort(model, n, t=1, seed=0, forge=lambda layout, rows: None, counts=None):
    """n clients whose weights moved a little, and whose statistics moved in proportion to their size."""
    layout = Layout.of(model)
    params = layout.flatten(model.state_dict())
    rng = torch.Generator().manual_seed(1000 * seed + t)
    rows = params + 0.05 * torch.randn(n, layout.d, generator=rng)
    for name, start, stop in layout.ranges():
        if name.endswith(("running_var", "running_mean")):
            moved = 1 + 0.1 * torch.randn(n, stop - start, generator=rng)
            rows[:, start:stop] = params[start:stop] * moved
    forge(layout, rows)
    updates = fw.Updates.of(rows, params, layout.measured)
    counts = np.full(n, 10.0) if counts is None else counts
    return fw.Cohort(t, tuple(map(str, range(n))), updates, counts, params)


def poison(value, who):
    def forge(layout, rows):
        for name, start, stop in layout.ranges():
            if name.endswith("running_var"):
                rows[who, start:stop] = value

    return forge


def variances(model, outcome, params):
    state = Layout.of(model).unflatten(params + outcome.update)
    return torch.cat([v for k, v in state.items() if k.endswith("running_var")])


@pytest.mark.parametrize("who", [[0], [0, 1]])
@pytest.mark.parametrize("value", [-20.0, -1e6, 1e12, 0.0])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_minority_cannot_poison_running_statistics(preset, value, who):
    """Each channel stays within what the honest clients sent, whatever its scale and whatever counts are claimed."""
    model = first_norm()
    counts = np.full(10, 10.0)
    counts[who] = 1e9
    sent = cohort(model, 10, forge=poison(value, who), counts=counts)
    fair = [i for i in range(10) if i not in who]
    ranges = [(a, b) for name, a, b in Layout.of(model).ranges() if name.endswith("running_var")]
    rows = torch.stack([torch.cat(sent.updates.sent(i)) for i in fair])
    honest = torch.cat([rows[:, a:b] for a, b in ranges], dim=1)
    made = variances(model, fw.Warden.preset(preset).step(sent), sent.params)
    assert (made >= honest.min(dim=0).values * (1 - 1e-3) - 1e-6).all()
    assert (made <= honest.max(dim=0).values * (1 + 1e-3) + 1e-6).all()


@pytest.mark.parametrize("preset", PRESETS)
def test_a_model_that_gives_no_numbers_is_not_installed(preset):
    """Even where a majority sends it: the last model is kept, and the round says so."""
    model = first_norm()

    def ruin(layout, rows):
        poison(-20.0, slice(0, 7))(layout, rows)

    warden = fw.Warden.preset(preset).equip(fw.Server(model, blank=torch.zeros(1, 6)))
    sent = cohort(model, 10, forge=ruin)
    outcome = warden.step(sent)
    assert (variances(model, outcome, sent.params) >= 0).all()
    assert fw.Note.of("variance_floored") in outcome.record.notes

    def explode(layout, rows):
        rows[:, : layout.sizes[0]] = 3e14  # within the norm that is let in, and far too much for two layers

    large = torch.full((1, 6), 1e30)
    warden = fw.Warden.preset(preset).equip(fw.Server(model, blank=large))
    outcome = warden.step(cohort(model, 10, forge=explode))
    assert not outcome.update.any()
    assert fw.Note.of("no_finite_output") in outcome.record.notes


def test_a_model_that_never_gave_numbers_is_not_held_back():
    model = nn.Sequential(nn.Linear(2, 2))
    warden = fw.Warden.preset("none").equip(fw.Server(model, blank=torch.full((1, 2), torch.nan)))
    assert warden.step(cohort(model, 4)).update.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("aggregator", ["mean", "multi_krum", "median", "geometric_median"])
def test_one_sender_of_another_type_and_one_flagged_client_crash_nothing(aggregator, preset, dtype):
    """The crash was in the correction of a sum from which a flagged client is taken out."""
    warden = fw.Warden.preset(preset)
    warden.aggregator = make("aggregator", aggregator)
    warden.reset()
    rng = torch.Generator().manual_seed(0)
    for t in range(1, 6):
        rows = list(torch.randn(9, 300, generator=rng))
        rows[3] = rows[3].to(dtype)
        rows[7] = 8 * rows[7]
        cohort = fw.Cohort(t, tuple("abcdefghi"), fw.Updates.of(rows, torch.zeros(300)), np.full(9, 10.0))
        outcome = warden.step(cohort)
        assert outcome.update.dtype == torch.float32
        assert torch.isfinite(outcome.update).all()
        told = any(str(n) == "client d: sent float64; converted to the model's float32" for n in outcome.record.notes)
        assert told == (dtype == torch.float64)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_client_that_returns_the_model_is_idle_and_never_excluded(preset):
    warden = fw.Warden.preset(preset)
    rng = np.random.default_rng(0)
    for t in range(1, 12):
        rows = 1.0 + rng.normal(size=(8, 200))
        rows[[2, 5]] = 0.0
        outcome = warden.step(fw.Cohort(t, tuple("abcdefgh"), fw.Updates.of(rows), np.full(8, 10.0)))
        assert {r.client_id: str(r.reason) for r in outcome.record.rejected} == dict.fromkeys(
            "cf", "idle: it returned the model unchanged"
        )
        np.testing.assert_allclose(outcome.update, np.delete(rows, [2, 5], axis=0).mean(axis=0), rtol=0.5, atol=0.5)
    assert not {"c", "f"} & set(warden.excluded)


@pytest.mark.parametrize(("n", "idle"), [(4, 1), (5, 2), (6, 2), (8, 3), (10, 4)])
@pytest.mark.parametrize("preset", PRESETS)
def test_beside_idle_clients_one_tiny_update_is_not_what_is_usual(preset, n, idle):
    """Idle ones counted as updates of length 0: a tiny one was the median, and everybody else too long beside it."""
    warden, rng = fw.Warden.preset(preset), np.random.default_rng(0)
    for t in range(1, 6):
        rows = 1.0 + 0.3 * rng.normal(size=(n, 30))
        rows[:idle], rows[-1] = 0.0, -1 / 1500
        outcome = warden.step(fw.Cohort(t, tuple(map(str, range(n))), fw.Updates.of(rows), np.full(n, 10.0)))
        assert {r.client_id for r in outcome.record.rejected} == set(map(str, range(idle)))
        assert outcome.update.mean() > 0.5


@pytest.mark.parametrize(("n", "f"), [(6, 2), (8, 3), (10, 4)])
@pytest.mark.parametrize("first", [True, False])
def test_who_copies_weights_has_no_more_say_in_the_buffers_for_it(n, f, first):
    """Each attacker sends an honest client's weights with a variance of its own; that client's vote was lost to it."""
    rng = np.random.default_rng(0)
    rows = 1.0 + rng.normal(size=(n, 60))
    rows[:, 50:] = 1.0 + 0.1 * rng.normal(size=(n, 10))
    attackers, victims = (slice(0, f), slice(f, 2 * f)) if first else (slice(n - f, n), slice(0, f))
    rows[attackers, :50], rows[attackers, 50:] = rows[victims, :50], 50.0
    updates = fw.Updates.of(rows, measured=[(0, 50)])
    outcome = fw.Warden.preset("auto").step(fw.Cohort(1, tuple(map(str, range(n))), updates, np.full(n, 10.0)))
    assert outcome.update[50:].max() < 1.5
