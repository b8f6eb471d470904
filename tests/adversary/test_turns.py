"""Claimed counts and attacks that come and go: what the guard cannot prove in time it contains."""

import numpy as np
import pytest
import torch

from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

ATTACK = {"name": "sign_flip", "scale": 3.0}
POINTS = 0.02  # of accuracy that a run may lose
LASTING = {"in turns": 0.05, "slow drift": 0.06, "steady": 0.05}  # a client in doubt is in nine of ten rounds, bounded
LATE = 5  # rounds at the end over which accuracy is averaged
INFLATED = 1e6
PERIODS = [(1, 1), (1, 2), (2, 2), (2, 3), (3, 3), (5, 5), (1, 5)]
DIGITS = {
    "data": {"dataset": "digits"},
    "model": {"name": "mlp", "hidden": [64]},
    "train": {"lr": 0.1, "momentum": 0.9, "epochs": 2, "batch_size": 16},
}
CASES = {
    **{f"{on} on, {off} off": [{**ATTACK, "count": 1, "on": on, "off": off}] for on, off in PERIODS},
    "in turns": [{**ATTACK, "clients": [k], "on": 2, "off": 4, "start": 1 + 2 * k} for k in range(3)],
    "honest for ten rounds": [{**ATTACK, "count": 1, "start": 11, "on": 2, "off": 2}],
    "slow drift": [{**ATTACK, "count": 1, "ramp": 20}],
    "steady": [{**ATTACK, "count": 1}],
}


class InPlace:
    """Trains in this process: a pool would take longer to start than these runs take."""

    def __init__(self, engine):
        self.engine = engine

    def train(self, params, round, client_ids, changed):
        out = torch.empty(len(client_ids), len(params))
        for places in self.engine.groups(client_ids):
            part = torch.empty(len(places), len(params))
            self.engine.train(params, round, [client_ids[i] for i in places], part, changed)
            out[places] = part
        return out


def play(attacks, alpha=None, seed=0, preset="auto", attackers=None, claims=1.0, **guard):
    """The records of thirty rounds of ten clients, and the attackers."""
    attacks = [{**a, "claims": claims, **({"count": attackers} if attackers and "count" in a else {})} for a in attacks]
    partition = {"name": "iid"} if alpha is None else {"name": "dirichlet", "alpha": alpha}
    table = {
        **DIGITS,
        "seed": seed,
        "rounds": 30,
        "data": {**DIGITS["data"], "clients": 10, "partition": partition},
        "train": {**DIGITS["train"], "group": 10, "workers": 1},
        "attacks": attacks,
        "guard": {"preset": preset, **guard},
    }
    scenario = load_scenario(table)
    federation = Federation(scenario)
    return list(federation.play(InPlace(federation.engine))), set(scenario.truth())


def accuracy(records):
    return float(np.mean([r.metrics["accuracy"] for r in records[-LATE:]]))


@pytest.fixture(scope="module")
def undisturbed():
    """The accuracy of the same run without attackers; each run is made once."""
    known = {}

    def find(alpha, seed):
        if (alpha, seed) not in known:
            known[alpha, seed] = accuracy(play([], alpha, seed)[0])
        return known[alpha, seed]

    return find


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("case", ["2 on, 2 off", "in turns"])
def test_who_attacks_now_and_then_with_an_inflated_count_does_no_harm(case, undisturbed):
    records, attackers = play(CASES[case], claims=INFLATED)
    assert accuracy(records) > undisturbed(None, 0) - POINTS
    assert set(records[-1].excluded) <= attackers
    bare, _ = play(CASES[case], claims=INFLATED, preset="none")
    assert accuracy(bare) < 0.5  # or this would test nothing


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("alpha", "claims"), [(None, INFLATED), (0.5, 1.0), (0.5, INFLATED)])
@pytest.mark.parametrize("case", CASES)
def test_one_attacker_of_ten_that_comes_and_goes_costs_at_most_two_points(case, alpha, claims, undisturbed):
    found = [play(CASES[case], alpha, seed, claims=claims) for seed in range(2)]
    lost = np.mean([undisturbed(alpha, seed) - accuracy(records) for seed, (records, _) in enumerate(found)])
    assert lost < LASTING.get(case, POINTS)
    for records, _ in found:
        assert records[-1].excluded == ()


SOME, MANY = ("2 on, 2 off", "in turns", "slow drift", "steady"), ("1 on, 1 off", "2 on, 2 off", "5 on, 5 off")


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("case", "attackers", "alike"),
    [(case, many, True) for case in SOME for many in (1, 3)]
    + [(case, 3, None) for case in (*MANY, "honest for ten rounds", "slow drift")],
)
def test_so_do_three_of_ten_and_all_where_the_operator_says_that_clients_are_alike(case, attackers, alike, undisturbed):
    records, _ = play(CASES[case], attackers=attackers, claims=INFLATED, alike=alike)
    assert accuracy(records) > undisturbed(None, 0) - (POINTS if alike else LASTING.get(case, POINTS))
    assert alike or records[-1].excluded == ()
