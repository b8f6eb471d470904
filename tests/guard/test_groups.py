"""Groups whose sums alone are judged: how they are drawn, what the guard is given, and whom their flags can cost."""

import json
import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden import Cohort, RoundRecord, Updates, Warden
from fedwarden.core.types import WatchRecord
from fedwarden.guard.grouped import Grouped, by_member
from fedwarden.guard.groups import Evidence, Groups, easy_coalition, group_name, least_capital, random_groups

N, D = 20, 200
NAMES = tuple(f"c{i}" for i in range(N))


def cohort(t, bad=(), scale=-1.0, names=NAMES):
    rng = np.random.default_rng(t)
    rows = 1.0 + 0.3 * rng.normal(size=(len(names), D))
    for client in bad:
        rows[names.index(client)] *= scale
    return Cohort(t, names, Updates.of(rows.astype(np.float32)), np.full(len(names), 10.0))


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 99))
def test_groups_are_a_partition_and_none_is_smaller_than_asked(n, size, seed):
    if n < size:
        with pytest.raises(ValueError, match=f"size={size}, n={n}"):
            random_groups(range(n), size, np.random.default_rng(seed))
        return
    groups = random_groups(range(n), size, np.random.default_rng(seed))
    assert sorted(c for group in groups for c in group) == list(range(n))
    assert len(groups) == n // size
    assert min(map(len, groups)) >= size


def test_groups_are_drawn_anew_every_round_and_again_from_the_same_seed():
    groups = Groups(size=4, seed=7)
    rounds = [groups.form(NAMES, t) for t in range(1, 9)]
    assert len(set(rounds)) == 8
    assert rounds == [Groups(size=4, seed=7).form(NAMES, t) for t in range(1, 9)]
    assert rounds[0] != Groups(size=4, seed=8).form(NAMES, 1)


def test_any_two_clients_meet_as_often_as_chance_has_it():
    groups, rounds = Groups(size=4), 3000
    met = sum("c3" in group for t in range(rounds) for group in groups.form(NAMES, t) if "c11" in group)
    assert abs(met / rounds - 3 / 19) < 4 * math.sqrt(3 / 19 * 16 / 19 / rounds)


def test_the_guard_is_given_the_means_of_groups_and_nothing_else(monkeypatch):
    came, seen = cohort(1), list[Cohort]()
    step = Warden.step
    monkeypatch.setattr(Warden, "step", lambda self, c, *rest: seen.append(c) or step(self, c, *rest))
    grouped = Grouped(Warden.preset("groups"), Groups(size=4))
    outcome = grouped.step(came)
    (given_,) = seen
    groups = grouped.groups.form(NAMES, 1)
    rows = came.updates.array.numpy()
    want = [rows[[NAMES.index(c) for c in group]].mean(axis=0) for group in groups]
    np.testing.assert_allclose(given_.updates.array, want, rtol=1e-5)
    assert given_.client_ids == tuple("+".join(group) for group in groups)
    assert outcome.record.client_ids == NAMES
    assert outcome.record.weights.sum() == pytest.approx(1.0)


def test_the_same_sums_of_other_updates_are_judged_the_same():
    grouped = [Grouped(Warden.preset("groups"), Groups(size=2)) for _ in range(2)]
    for t in range(1, 6):
        came = cohort(t, bad=("c0",))
        rows = came.updates.array.double().numpy().copy()
        for a, b in grouped[0].groups.form(NAMES, t):  # what one gains the other loses
            shift = np.random.default_rng(t).normal(size=D) * 50
            rows[NAMES.index(a)] += shift
            rows[NAMES.index(b)] -= shift
        other = Cohort(t, NAMES, Updates.of(rows), np.full(N, 10.0))
        left, right = (g.step(c).record for g, c in zip(grouped, (came, other), strict=True))
        assert (left.weights > 0).tolist() == (right.weights > 0).tolist()
        assert left.excluded == right.excluded


def test_groups_of_one_decide_as_the_plain_guard():
    plain, grouped = Warden.preset("auto", secret=1), Grouped(Warden.preset("auto", secret=1), Groups(size=1))
    for t in range(1, 8):
        came = cohort(t, bad=("c0", "c5"), scale=-3.0)
        a, b = plain.step(came), grouped.step(came)
        assert torch.equal(a.update, b.update)
        assert a.weights.tolist() == b.weights.tolist()
        assert a.record.excluded == b.record.excluded
    assert grouped.memory.doubted == plain.memory.doubted == {"c0", "c5"}
    assert grouped.asks("c0") == plain.asks("c0")


def test_a_mean_of_one_members_rubbish_costs_its_group_only():
    came = cohort(1)
    rows = came.updates.array.numpy().copy()
    rows[4] = np.nan
    grouped = Grouped(Warden.preset("groups"), Groups(size=2))
    outcome = grouped.step(Cohort(1, NAMES, Updates.of(rows), np.full(N, 10.0)))
    (group,) = [g for g in grouped.groups.form(NAMES, 1) if "c4" in g]
    assert {c for c, w in zip(NAMES, outcome.weights, strict=True) if w == 0} == set(group)
    assert {r.client_id for r in outcome.record.rejected} == set(group)
    assert torch.isfinite(outcome.update).all()
    assert outcome.record.metrics["lost_with_group"] == 2


def test_attackers_are_excluded_for_what_their_groups_did_and_nobody_else():
    grouped = Grouped(Warden.preset("groups"), Groups(size=2))
    asked = NAMES
    for t in range(1, 25):
        asked = tuple(c for c in NAMES if grouped.asks(c))
        record = grouped.step(cohort(t, bad=[c for c in ("c0", "c5") if c in asked], scale=-8.0, names=asked)).record
    assert set(grouped.excluded) == {"c0", "c5"} == set(record.excluded)
    assert len(asked) == N - 2
    for told in record.reported.values():  # of clients, each with its group's number
        assert set(told) == set(asked)
    assert "update/cosine" in record.reported


def test_members_have_the_numbers_of_their_own_group_in_whatever_order_sums_came():
    watch = WatchRecord("far", np.array([7.0, 1.0]), np.array([7.0, 1.0]), 3.0, np.array([True, False]))
    record = RoundRecord(
        1, ("c+d", "a+b"), np.array([8.0, 4.0]), np.array([0.0, 1.0]), (watch,), np.array([True, False]),
        reported={"update/cosine": {"c+d": -0.5, "a+b": 0.5}},
    )  # fmt: skip
    groups = (("a", "b"), ("c", "d"), ("e", "f"))  # the last has no sum
    told = by_member(record, groups, tuple("abcdef"), Evidence(), Evidence())
    assert told.client_ids == ("a", "b", "c", "d")
    assert told.weights.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert told.watches[0].scores.tolist() == [1.0, 1.0, 7.0, 7.0]
    assert told.num_examples.tolist() == [2.0, 2.0, 4.0, 4.0]
    assert told.reported == {"update/cosine": {"c": -0.5, "d": -0.5, "a": 0.5, "b": 0.5}}
    assert told.metrics["lost_with_group"] == 4


def brute(seen, colluders, chance=0.05, likely=0.5):
    """The least capital, by trying every coalition."""
    names = sorted(set().union(*(others for others, _ in seen)))
    gain, loss = math.log(likely / chance), math.log((1 - likely) / (1 - chance))
    return min(
        sum(gain if flag else loss for others, flag in seen if not others & set(some))
        for k in range(colluders + 1)
        for some in combinations(names, k)
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_least_capital_is_that_of_the_best_of_all_coalitions(seed):
    rng = np.random.default_rng(seed)
    seen = [(frozenset(rng.choice(list("abcdefgh"), 2, False).tolist()), bool(rng.random() < 0.6)) for _ in range(12)]
    for colluders in (0, 1, 3):
        assert least_capital(seen, colluders, (), 0.05, 0.5) == pytest.approx(brute(seen, colluders), abs=1e-6)
        easy = easy_coalition(seen, colluders, ())
        assert least_capital(seen, len(easy), easy, 0.05, 0.5) >= brute(seen, colluders) - 1e-6


def played(groups, rounds, attackers, flag, seed, chance=0.0):
    """Rounds in which a group with an attacker is flagged where ``flag(group)`` says so, another one by chance."""
    evidence, rng = Evidence(), np.random.default_rng(seed)
    for t in range(1, rounds + 1):
        formed = groups.form([c for c in NAMES if c not in evidence.excluded], t)
        flags = {g: flag(g) if set(g) & attackers else bool(rng.random() < chance) for g in formed}
        evidence = groups.step(evidence, flags)
    return evidence


@pytest.mark.parametrize("size", [2, 3, 5])
def test_attackers_cannot_have_an_honest_client_excluded(size):
    attackers, victim = {"c0", "c1", "c2", "c3"}, "c9"
    groups = Groups(size=size, seed=size)
    evidence = played(groups, 60, attackers, lambda group: victim in group, 0)  # they attack in its company only
    flagged = sum(flag for _, flag in evidence.of(victim))
    assert flagged >= 8
    assert not set(evidence.excluded) - attackers
    naive = least_capital(evidence.of(victim), 0, (), 0.05, 0.5)
    assert size == 2 or naive > math.log(N / 0.05), "without coalitions in mind it would be"


@pytest.mark.parametrize("size", [2, 3])
def test_attackers_whose_groups_are_always_flagged_are_all_found(size):
    attackers = {"c0", "c1", "c2", "c3"}
    assert set(played(Groups(size=size), 40, attackers, lambda group: True, 0).excluded) == attackers


@pytest.mark.slow
def test_of_many_runs_no_more_than_the_level_exclude_an_honest_client():
    wronged = 0
    for seed in range(200):
        evidence = played(Groups(size=3, seed=seed), 40, set(), lambda group: True, seed, chance=0.05)
        wronged += bool(evidence.excluded)
    assert wronged <= 17  # of 200 at 5 %: the 97.5 % point of the binomial


def test_a_round_in_which_most_groups_are_flagged_blames_nobody():
    groups, evidence = Groups(size=2), Evidence()
    for t in range(1, 30):
        evidence = groups.step(evidence, dict.fromkeys(groups.form(NAMES, t), True))
    assert not evidence.excluded
    assert not any(flag for r in evidence.rounds for _, flag in r)


def test_what_is_remembered_survives_json_and_a_restart():
    attackers = {"c0"}
    evidence = played(Groups(size=2), 9, attackers, lambda group: True, 0)
    assert Evidence.load(json.loads(json.dumps(evidence.state_dict()))) == evidence
    grouped = Grouped(Warden.preset("groups"), Groups(size=2))
    grouped.step(cohort(1))
    again = Grouped(Warden.preset("groups"), Groups(size=2))
    again.load_state_dict(grouped.remembered())
    assert again.evidence == grouped.evidence
    assert again.memory == grouped.memory


@pytest.mark.parametrize("wrong", [{"size": 0}, {"alpha": 1.0}, {"colluders": 0.5}, {"chance": 0.6}, {"likely": 1.0}])
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="needs"):
        Groups(**wrong)


def test_groups_of_clients_whose_names_hold_a_plus_are_told_apart():
    assert group_name(("a+b", "c")) != group_name(("a", "b+c"))
    assert group_name(("a\\", "b")) != group_name(("a\\+b", "c"))


def test_too_few_clients_for_a_group_are_foreseen_as_they_are_judged():
    cohort = Cohort(1, ("a", "b"), Updates.of(np.ones((2, 5))), np.full(2, 10.0))
    decision, outcome = Grouped(Warden.preset("groups"), Groups(size=3)).foresee(cohort)
    assert len(decision.cohort) == 0
    assert not outcome.update.any()
