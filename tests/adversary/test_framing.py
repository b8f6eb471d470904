"""A minority that wants an honest client excluded: real training, real guard, and clients that come and go."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

HOWS = ("copy", "surround", "oppose", "shrink", "crowd")


def framed(n, f, how, alpha=1.0, rounds=8, seed=3):
    """The clients that are gone after some rounds of real training, and how often an honest one was left out."""
    scenario = load_scenario(
        {
            "seed": seed,
            "rounds": rounds,
            "data": {"dataset": "digits", "clients": n, "partition": {"name": "dirichlet", "alpha": alpha}},
            "model": {"name": "mlp", "hidden": [16]},
            "train": {"lr": 0.1, "workers": 1},
            "attacks": [{"name": "frame", "how": how, "count": f}],
            "guard": {"preset": "auto"},
        }
    )
    federation = Federation(scenario)
    attackers, out = set(scenario.truth()), []
    for record in federation.play():
        honest = [i for i, c in enumerate(record.client_ids) if c not in attackers]
        out.append(np.mean(record.weights[honest] == 0))
    return federation.warden.excluded, float(np.mean(out))


@pytest.mark.slow
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("n", "f"), [(5, 1), (5, 2), (8, 3), (20, 8)])
def test_nobody_is_framed(n, f, how):
    gone, left_out = framed(n, f, how)
    assert gone == ()
    assert left_out <= 0.3


def updates(n, t):
    common = np.random.default_rng(999).normal(size=300)
    return common + np.random.default_rng(t).normal(size=(n, 300))


@pytest.mark.parametrize("n", [8, 20])
def test_attackers_under_new_names_in_every_round_get_no_honest_client_out(n):
    warden, f, out = fw.Warden.preset("auto", secret=0), (n - 1) // 3, 0
    for t in range(1, 25):
        rows = updates(n, t)
        rows[:f] *= -2
        ids = [f"new {t}-{i}" for i in range(f)] + [str(i) for i in range(f, n)]
        keep = [i for i in range(n) if warden.asks(ids[i])]
        record = warden.step(fw.Cohort(t, tuple(ids[i] for i in keep), fw.Updates.of(rows[keep]), np.ones(n))).record
        out += np.count_nonzero(record.weights[f:] == 0)
    assert warden.excluded == ()
    assert out == 0


@pytest.mark.parametrize("n", [8, 20])
def test_honest_clients_that_come_and_go_stay_in(n):
    warden, rng = fw.Warden.preset("auto"), np.random.default_rng(1)
    for t in range(1, 41):
        keep = np.sort(rng.permutation(2 * n)[:n])
        came = fw.Cohort(t, tuple(map(str, keep)), fw.Updates.of(updates(2 * n, t)[keep]), np.ones(n))
        assert warden.step(came).weights.all()
    assert warden.excluded == ()
