"""Many clients, each seen a few times: attackers that fill rounds, walk what is carried, or bring new ids."""

import json
import math

import numpy as np
import pytest
from scipy.stats import norm

import fedwarden as fw
from fedwarden.core.types import Cohort
from fedwarden.guard.population import WINDOW, Population
from fedwarden.guard.replay import replay
from fedwarden.updates.updates import Updates

D, SIGMA = 100, 0.3  # of the log lengths of honest updates
AIM = np.eye(D)[0]


def honest(rng, n, scale=1.0):
    """Updates that agree a little: cosines to the common direction of about .3, lengths log-normal about the scale."""
    rows = 0.3 * AIM + rng.normal(size=(n, D)) / math.sqrt(D)
    lengths = scale * np.exp(SIGMA * rng.normal(size=(n, 1)))
    return lengths * rows / np.linalg.norm(rows, axis=1, keepdims=True)


def step(warden, t, rows, ids):
    before = warden.memory.population
    outcome = warden.step(Cohort(t, ids, Updates.of(rows), np.full(len(rows), 20.0)))
    return before, outcome, float(outcome.update.norm())


def started(rng, n=10, rounds=60, clients=4000):
    """A warden that has seen some rounds of clients drawn from thousands."""
    warden = fw.Warden.preset("auto", secret=7)
    for t in range(1, rounds + 1):
        step(warden, t, honest(rng, n), rng.choice(clients, n, replace=False))
    return warden


def test_attackers_that_fill_rounds_move_the_model_by_1_5_carried_lengths_and_these_by_n_over_500_a_round():
    rng = np.random.default_rng(0)
    warden = started(rng)
    for t in range(61, 81):
        rows = np.vstack([honest(rng, 2), -100.0 * AIM + honest(rng, 8)])
        before, outcome, moved = step(warden, t, rows, [f"{t} {i}" for i in range(10)])
        assert moved <= 1.5 * before.middle * (1 + 1e-6)
        assert warden.memory.population.middle <= before.middle * math.exp(10 / WINDOW) * (1 + 1e-9)
        assert outcome.record.metrics["carried_length"] == pytest.approx(before.middle)
    assert warden.memory.population.middle < 1.2 * math.exp(20 * 10 / WINDOW)


def carried(rounds):
    """What is carried, round by round, of rounds of lengths."""
    population, found = Population(), []
    for lengths in rounds:
        population = population.after(len(lengths), 1.0).measuring(lengths)
        found.append(population.middle)
    return np.array(found)


def test_a_fifth_of_all_updates_cannot_walk_the_carried_median_beyond_a_quantile_of_honest_ones():
    """With a share a above all honest ones their quantile .5 / (1 - a) is the median: here that of .625."""
    rng = np.random.default_rng(1)
    rounds = [np.append(np.exp(SIGMA * rng.normal(size=40)), np.full(10, 1e6)) for _ in range(300)]
    assert np.log(carried(rounds)[30:]).mean() == pytest.approx(SIGMA * norm.ppf(0.625), abs=0.02)


@pytest.mark.parametrize("scale", [0.1, 5.0])
def test_a_change_of_all_clients_is_followed(scale):
    rng = np.random.default_rng(2)
    rounds = [(1.0 if t < 60 else scale) * np.exp(SIGMA * rng.normal(size=10)) for t in range(300)]
    assert carried(rounds)[-1] == pytest.approx(scale, rel=0.2)


def test_a_first_round_of_attackers_is_forgotten():
    rng = np.random.default_rng(3)
    rounds = [(30.0 if t == 0 else 1.0) * np.exp(SIGMA * rng.normal(size=10)) for t in range(120)]
    assert carried(rounds)[-1] == pytest.approx(1.0, rel=0.3)


def test_new_ids_in_every_round_count_as_stable_ones_do_and_a_burst_of_them_does_not():
    rng = np.random.default_rng(5)
    fresh = fw.Warden.preset("auto")
    for t in range(1, 40):
        _, outcome, _ = step(fresh, t, honest(rng, 10), [f"{t} {i}" for i in range(10)])
        assert outcome.weights == pytest.approx(np.full(10, 0.1))
    stable = started(rng, rounds=160, clients=150)  # ten visits each
    usual = stable.memory.population.fresh
    ids = [*map(str, rng.choice(150, 4, replace=False)), *(f"new {i}" for i in range(6))]
    _, outcome, _ = step(stable, 161, honest(rng, 10), ids)
    allowed = max(1.0, 10 * usual + 2 * math.sqrt(10 * usual * (1 - usual)))
    assert usual < 0.15
    assert "carried_length" in outcome.record.metrics
    assert outcome.weights[4:].sum() / outcome.weights[:4].sum() == pytest.approx(allowed / 4)


@pytest.mark.parametrize(("asked", "clients"), [(4, 4), (20, 20), (12, 40), (10, 50), (300, 300)])
def test_small_federations_and_whole_ones_are_judged_as_ever(asked, clients):
    rng = np.random.default_rng(6)
    warden, carried = fw.Warden.preset("auto"), 0
    for t in range(1, 300 // asked + 6):
        _, outcome, _ = step(warden, t, honest(rng, asked), rng.choice(clients, asked, replace=False))
        carried += "carried_length" in outcome.record.metrics
    assert carried == 0


def test_what_is_carried_goes_through_a_checkpoint_and_a_replay_judges_alike():
    rng = np.random.default_rng(7)
    warden = started(rng)
    again = fw.Warden.preset("auto", secret=7)
    again.load_state_dict(json.loads(json.dumps(warden.state_dict())))
    assert again.memory.population == warden.memory.population
    cohort = Cohort(61, range(10), Updates.of(-honest(rng, 10)), np.full(10, 20.0))
    one, other = warden.step(cohort), again.step(cohort)
    assert one.update.equal(other.update)
    assert one.record.metrics == other.record.metrics
    assert again.memory.population == warden.memory.population
    replayed = replay(warden.recent, fw.Warden.preset("auto", secret=7))
    assert all((a.flagged == b.flagged).all() for a, b in zip(warden.recent, replayed, strict=True))


def test_blank_numbers_judge_nobody():
    blank = Population()
    assert not blank.few(np.zeros(10))
    assert blank.measuring(np.zeros(3)) == blank
