"""Forged updates that need no optimisation, each against its definition."""

import numpy as np
import pytest
import torch

from fedwarden.attacks import View
from fedwarden.attacks.model import most_apart, quantise
from fedwarden.core.registry import make
from fedwarden.sim.adversary import Adversary, Round
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

D = 4000


def view(k=3, previous=None, round=2):
    own = torch.randn(k, D, generator=torch.Generator().manual_seed(0)) * torch.arange(1.0, k + 1)[:, None]
    return View(own, None, torch.zeros(D), previous, round, 10)


def forge(name, seen=None, seed=0, **options):
    return make("attack", name, **options).forge(seen or view(), np.random.default_rng(seed))


def test_sign_flip_and_scaling():
    own = view().own
    assert torch.equal(forge("sign_flip"), -own)
    assert torch.equal(forge("sign_flip", scale=3.0), -3.0 * own)
    assert torch.equal(forge("scaling", factor=7.0), 7.0 * own)


def test_gaussian_is_as_long_as_the_own_update_or_as_told():
    own = view().own
    got = forge("gaussian")
    assert (got.norm(dim=1) / own.norm(dim=1)).tolist() == pytest.approx([1.0] * 3, rel=0.05)
    assert abs(torch.corrcoef(torch.stack([got[0], own[0]]))[0, 1]) < 0.08
    assert forge("gaussian", sigma=2.0).std(dim=1).tolist() == pytest.approx([2.0] * 3, rel=0.05)
    assert not forge("gaussian", sigma=0.0).any()


def test_a_free_rider_sends_what_it_was_sent():
    last = torch.linspace(-1, 1, D)
    got = forge("free_rider", view(previous=last), noise=0.1)
    off = (got - last).norm(dim=1) / last.norm()
    assert off.tolist() == pytest.approx([0.1] * 3, rel=0.05)
    assert not torch.equal(got[0], got[1])
    assert torch.equal(forge("free_rider", view(previous=last), noise=0.0), last.expand(3, -1))
    assert not forge("free_rider", view(previous=last), mode="zero").any()
    assert not forge("free_rider", view(round=1)).any()  # nothing was sent yet


def test_sybils_send_nearly_the_same():
    mean = view().own.mean(dim=0)
    got = forge("sybil", scale=2.0, noise=0.01)
    for row in got:
        assert float((row - 2 * mean).norm() / (2 * mean).norm()) == pytest.approx(0.01, rel=0.05)
    assert torch.equal(forge("sybil", noise=0.0), -mean.expand(3, -1))


def test_a_copycat_sends_what_the_first_honest_client_trained():
    others = torch.randn(4, D, generator=torch.Generator().manual_seed(1))
    seen = View(view().own, others, torch.zeros(D), None, 2, 7)
    assert torch.equal(forge("copy", seen), others[:1].expand(3, -1))
    assert torch.equal(forge("copy", seen, scale=-2.0), -2.0 * others[:1].expand(3, -1))
    alone = View(view().own, others[:0], torch.zeros(D), None, 2, 3)
    assert torch.equal(forge("copy", alone), alone.own[:1].expand(3, -1))  # nobody honest is left to copy


SIX = torch.from_numpy(np.random.default_rng(0).normal(0.3, 1.0, size=(6, 40))).float()


def mimic(others=SIX, clients=("2", "3", "5", "7", "8", "9"), **options):
    seen = View(torch.zeros(3, 40), others, torch.zeros(40), None, 4, 9, None, clients)
    return forge("mimic", seen, **options)


@pytest.mark.parametrize(("victim", "row"), [(2, 0), (5, 2), (9, 5)])
def test_all_send_what_the_victim_sends(victim, row):
    assert torch.equal(mimic(victim=victim), SIX[row].expand(3, -1))


def test_a_victim_that_is_not_there():
    with pytest.raises(ValueError, match="client 4 sends no honest update in round 4"):
        mimic(victim=4)
    with pytest.raises(ValueError, match="client 2 sends no honest update"):
        mimic(None, (), victim=2)


@pytest.mark.parametrize("seed", range(5))
def test_without_a_victim_it_is_the_one_furthest_along_the_first_principal_axis(seed):
    x = torch.from_numpy(np.random.default_rng(seed).normal(size=(7, 12)) * np.linspace(1, 3, 12))
    axis = torch.linalg.svd(x - x.mean(dim=0)).Vh[0]
    assert most_apart(x) == max(range(7), key=lambda i: abs(float(x[i] @ axis)))


def test_all_send_what_the_one_that_stands_out_sends():
    assert torch.equal(mimic(), SIX[most_apart(SIX)].expand(3, -1))


def test_in_the_simulator_a_victim_is_known_by_its_number():
    table = {"rounds": 2, "data": {"clients": 5}, "attacks": [{"name": "mimic", "clients": [0, 3], "victim": 4}]}
    adversary = Adversary.of(load_scenario(table), [(0, 2)], torch.device("cpu"))
    models = torch.arange(10.0).reshape(5, 2)
    round = Round(models, torch.zeros(2), None, 1, list("01234"), lambda m: np.ones(len(m), bool))
    assert adversary.act(round) == []
    assert models.tolist() == [[8, 9], [2, 3], [4, 5], [8, 9], [8, 9]]
    alone = Round(models[:4], torch.zeros(2), None, 1, list("0123"), lambda m: np.ones(len(m), bool))
    assert [str(note) for note in adversary.act(alone)] == [
        "attack 'mimic' was not carried out: client 4 sends no honest update in round 1"
    ]


@pytest.mark.parametrize(("top", "count"), [(0.0, 0), (0.05, 5), (0.3, 30)])
@pytest.mark.parametrize("seed", [1, None])
def test_the_largest_coordinates_of_the_last_change_are_not_touched(top, count, seed):
    own = torch.from_numpy(np.random.default_rng(0).normal(size=(3, 100)))
    previous = None if seed is None else torch.from_numpy(np.random.default_rng(seed).normal(size=100))
    change = own.mean(dim=0) if previous is None else previous
    largest = sorted(range(100), key=lambda k: -abs(float(change[k])))[:count]
    sent = forge("neurotoxin", View(own, None, torch.zeros(100), previous, 2, 9), top=top)
    for k in range(100):
        assert sent[:, k].tolist() == ([0.0] * 3 if k in largest else own[:, k].tolist())


def test_with_a_backdoor_on_the_same_clients():
    """The backdoor is trained first, and what is sent of it is projected; it still works on the mean."""
    both = [{"name": "backdoor", "count": 3}, {"name": "neurotoxin", "count": 3, "top": 0.1}]
    table = {"rounds": 6, "data": {"clients": 6}, "model": {"name": "mlp", "hidden": [16]}, "attacks": both}
    federation = Federation(load_scenario({**table, "guard": {"preset": "none"}, "train": {"workers": 1}}))
    records = list(federation.play())
    assert federation.truth.keys() == {"0", "1", "2"}
    assert records[-1].metrics["attack_success"] > 0.5


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_rounded_update_takes_few_values_and_is_at_most_half_a_step_off(bits):
    x, sent = view().own, forge("quantised", bits=bits)
    levels = 2 ** (bits - 1) - 1
    for before, after in zip(x, sent, strict=True):
        step = float(before.abs().max()) / levels
        assert len(after.unique()) <= 2 * levels + 1
        assert float((after - before).abs().max()) <= step / 2 * 1.001
        assert float(after.abs().max()) == pytest.approx(float(before.abs().max()))


def test_an_update_of_zeros_stays_one():
    assert torch.equal(quantise(torch.zeros(2, 5), 8), torch.zeros(2, 5))


@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_noise_is_as_long_as_asked_and_keeps_the_update(ratio):
    x, sent = view().own, forge("noised", ratio=ratio)
    added = sent - x
    assert (added.norm(dim=1) / x.norm(dim=1)).tolist() == pytest.approx([ratio] * 3, rel=0.05)
    assert abs(float((added * x).sum() / (added.norm() * x.norm()))) < 0.05


def test_fake_clients_pull_towards_one_model_whatever_the_round_is():
    """From wherever the model is, what is sent leads to the same place: w + x / factor is w' for every w."""
    places = []
    for t, params in enumerate((torch.zeros(50), torch.ones(50))):
        sent = forge("mpaf", View(torch.ones(3, 50), None, params, None, t, 9), seed=t, factor=4.0, deviation=0.5)
        assert torch.equal(sent, sent[0].expand(3, 50))
        places.append(params + sent[0] / 4.0)
    torch.testing.assert_close(*places)
    assert 0.3 < float(places[0].std()) < 0.7
