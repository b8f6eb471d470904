"""The attacker that knows everything hurts a defence more than any single push does, and is not flagged for it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedwarden import Cohort, Updates, Warden, Watch
from fedwarden.attacks import Effect, View
from fedwarden.attacks.strongest import COARSE, RATIO, harm, plans
from fedwarden.core.registry import make

N, F, D = 20, 6, 200
SINGLE = ("adaptive", "alie", "ipm", "min_max", "min_sum", "sign_flip", "scaling", "sybil", "mimic", "copy", "sparse")


def rows(seed=0, n=N, d=D, agreement=0.5):
    """Updates with something in common and noise: cosines of about a fifth between two of them."""
    drawn = np.random.default_rng(seed)
    common = drawn.normal(size=d)
    return torch.from_numpy(agreement * common + drawn.normal(size=(n, d)))


def view_of(warden, x, f=F, previous=None):
    """The first f attack; what becomes of the round is told by the warden."""

    def outcome(sent):
        cohort = Cohort(1, tuple(map(str, range(len(x)))), Updates.of(torch.cat([sent, x[f:]])), np.ones(len(x)))
        decision, found = warden.foresee(cohort)
        return Effect(found.update, found.weights[:f], decision.unsuspected[:f])

    def accepts(sent):
        return outcome(sent).accepted

    base = torch.zeros(x.shape[1], dtype=x.dtype)
    return View(x[:f], x[f:], base, previous, 1, len(x), accepts, (), outcome)


def forge(view, name="strongest", **options):
    return make("attack", name, **options).forge(view, np.random.default_rng(0))


def harm_of(view, sent):
    return harm(view.outcome(sent).update, view.honest.mean(dim=0))


DEFENCES = {
    "Multi-Krum": {"name": "multi_krum", "f": F},
    "NNM + trimmed mean": {"name": "nearest_neighbour_mixing", "f": F, "then": {"name": "trimmed_mean", "b": F}},
    "Krum": {"name": "krum", "f": F},
    "trimmed mean": {"name": "trimmed_mean", "b": F},
    "RFA": "geometric_median",
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("defence", DEFENCES)
def test_no_single_push_hurts_a_rule_that_is_told_f_more(defence, seed):
    x = rows(seed)
    view = view_of(Warden(aggregator=DEFENCES[defence]), x, previous=x.mean(dim=0))
    reached = harm_of(view, forge(view))
    assert reached > harm_of(view, view.own)
    for plan in plans(view):
        for j in range(COARSE):
            assert reached >= harm_of(view, plan.rows(8.0 / RATIO**j))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("defence", ["Multi-Krum", "NNM + trimmed mean"])
def test_it_hurts_more_than_every_attack_that_does_not_look(defence, seed):
    x = rows(seed)
    view = view_of(Warden(aggregator=DEFENCES[defence]), x)
    reached = harm_of(view, forge(view))
    assert reached > max(harm_of(view, forge(view, name)) for name in SINGLE)


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_flagged_and_it_goes_as_far_as_the_guard_lets_it(seed):
    x = rows(seed)
    watch = Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, start_round=1)
    view = view_of(Warden([watch], policy="exclude"), x)
    sent = forge(view)
    assert view.accepts(sent).all()
    assert harm_of(view, sent) > harm_of(view, forge(view, "adaptive", limit=8.0, steps=7))
    weaker = view.own + 0.99 * (sent - view.own)
    assert harm_of(view, weaker) < harm_of(view, sent)


def test_a_round_costs_some_forty_questions():
    asked = []
    for aggregator in DEFENCES.values():
        x = rows()
        view = view_of(Warden(aggregator=aggregator), x, previous=x.mean(dim=0))

        def outcome(sent, told=view.outcome):
            asked.append(len(sent))
            return told(sent)

        asked.clear()
        forge(replace(view, outcome=outcome))
        assert 20 <= len(asked) <= 45


def test_harm_by_hand():
    mean = torch.tensor([3.0, 4.0])
    assert harm(mean, mean) == -1.0
    assert harm(-2 * mean, mean) == 2.0
    assert harm(torch.tensor([4.0, -3.0]), mean) == 0.0
    assert harm(mean, torch.zeros(2)) == 0.0


def told(accepts, own=None):
    """Two attackers and three honest clients whose updates are averaged."""
    honest = torch.tensor([[1.0, 0.0], [3.0, 0.0], [2.0, 0.0]])

    def outcome(sent):
        return Effect(torch.cat([sent, honest]).mean(dim=0), np.full(2, 0.2), accepts(sent))

    own = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) if own is None else own
    return View(own, honest, torch.zeros(2), None, 1, 5, accepts, (), outcome)


def test_without_a_guard_it_goes_to_the_limit():
    """Against the mean of 2 from 1 each: u = (2 (1 - 2 limit) + 6) / 5, and no plan reaches less."""
    view = told(lambda sent: np.ones(2, bool))
    sent = forge(view, limit=4.0)
    assert sent[:, 0].tolist() == [-7.0, -7.0]
    assert harm_of(view, sent) == pytest.approx(-((2 * -7.0 + 6) / 5) / 2)


def test_it_stops_short_of_what_the_guard_refuses():
    view = told(lambda sent: sent[:, 0].numpy() >= -3.0)
    sent = forge(view, steps=10)
    assert sent[:, 0].tolist() == pytest.approx([-3.0, -3.0], rel=0.01)


def test_nobody_is_sacrificed_but_who_is_flagged_anyhow_may_go_on():
    view = told(lambda sent: np.array([True, False]))
    assert forge(view)[0, 0] < -10  # the second is flagged for what it trained
    careful = told(lambda sent: np.array([True, bool(sent[1, 0] > 0.5)]))
    assert careful.accepts(forge(careful)).all()
    never = told(lambda sent: np.full(2, bool((sent[:, 0] == 1.0).all())))
    assert torch.equal(forge(never), never.own)


def test_where_nobody_tells_it_takes_the_mean_for_the_rule():
    view = replace(told(lambda sent: sent[:, 0].numpy() >= -3.0), outcome=None)
    assert (forge(view)[:, 0] >= -3.0).all()
    blind = replace(view, others=None, accepts=None)
    assert torch.isfinite(forge(blind)).all()


def adaptive(accepts, **options):
    return forge(told(accepts, torch.ones(2, 2)), "adaptive", **options)


def test_the_adaptive_one_goes_as_far_as_the_guard_lets_it():
    asked = []

    def accepts(rows):
        asked.append(rows)
        return rows[:, 0].numpy() >= -3.0

    got = adaptive(accepts, steps=20)
    assert (got[:, 1] == 1).all()
    assert got[:, 0].tolist() == pytest.approx([-3.0, -3.0], abs=1e-4)
    assert len(asked) == 21
    assert all(rows.shape == (2, 2) for rows in asked)


def test_a_guard_that_objects_to_nothing_or_to_everything():
    always = adaptive(lambda rows: np.ones(2, bool), limit=4.0)
    assert always[:, 0].tolist() == [-7.0, -7.0]  # 1 - 4 times the mean of 2
    never = adaptive(lambda rows: np.zeros(2, bool))
    assert never[:, 0].tolist() == [1.0, 1.0]
    one = adaptive(lambda rows: np.array([True, False]))  # nobody is sacrificed
    assert one[:, 0].tolist() == [1.0, 1.0]
