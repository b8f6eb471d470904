"""Gathered evidence against a plain loop written from the formulas."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.history.evidence import Evidence, Gathered, lower_spread

values = st.lists(st.floats(-3, 5), min_size=1, max_size=15)


@given(values)
def test_the_lower_spread_ignores_what_lies_above_the_median(means):
    x = np.array(means)
    below = sorted(v - np.median(x) for v in means)[: (len(x) + 1) // 2]  # the lower half, the middle one included
    assert lower_spread(x) == pytest.approx(math.sqrt(sum(min(b, 0.0) ** 2 for b in below) / len(below)))
    middle = np.sort(x)[len(x) // 2]
    assert lower_spread(np.where(x > middle, x + 100.0, x)) == pytest.approx(lower_spread(x))


def test_a_symmetric_cohort_has_about_the_spread_of_a_gaussian():
    x = np.random.default_rng(0).normal(0.0, 0.3, size=20_001)
    assert lower_spread(x) == pytest.approx(0.3, rel=0.03)


rounds = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.floats(-2, 5), min_size=1), min_size=1, max_size=8)


@given(rounds)
def test_evidence_is_the_formula_whoever_takes_part(played):
    history = Evidence(alpha=0.1)
    state, evidence, past = history.init(), {}, {}
    for now in played:
        state, scores = history.step(state, tuple(now), np.array(list(now.values())))
        for c, value in now.items():
            past.setdefault(c, []).append(min(max(value, -1.0), 1.0))
        means = np.array([faded(past[c]) for c in now])
        allowed = max(math.log(1.7), t.isf(0.1 / len(now), max(len(now) / 2, 1)) * lower_spread(means))
        for c, value in now.items():
            evidence[c] = max(0.0, evidence.get(c, 0.0) + min(max(value / allowed - 1, -0.5), 1.0))
        np.testing.assert_allclose(scores, [evidence[c] for c in now], atol=1e-9)


def faded(values):
    """The mean of the first ten values, into which each later one comes with a weight of a tenth."""
    mean = float(np.mean(values[:10]))
    for value in values[10:]:
        mean = 0.9 * mean + 0.1 * value
    return mean


def test_what_is_allowed_follows_the_cohort():
    """Clients that grow apart late are compared as they are now, not with what they were."""
    history, ids = Evidence(), tuple("abcdefghij")
    state, apart = history.init(), np.linspace(-0.9, 0.9, 10)
    for round in range(120):
        state, scores = history.step(state, ids, apart * (round >= 100))
    assert scores.max() < 2.5


def test_one_round_never_decides_and_several_do():
    history = Evidence()
    state, ids, seen = history.init(), tuple("abcde"), []
    for _ in range(4):
        state, scores = history.step(state, ids, np.array([0.0, 0.1, -0.1, 0.0, 50.0]))
        seen.append(scores[-1])
        assert not scores[:4].any()
    assert seen == pytest.approx([1.0, 2.0, 3.0, 4.0])  # at most 1 a round


def test_a_client_a_little_out_is_never_suspected():
    history = Evidence()
    state = history.init()
    for _ in range(100):
        state, scores = history.step(state, tuple("abcde"), np.array([0.0, 0.0, 0.0, 0.0, math.log(1.45)]))
    assert not scores.any()


def test_only_trusted_clients_say_what_is_allowed():
    ids, x = tuple("abcdef"), np.array([0.0, 0.05, -0.05, 0.0, 0.6, -9.0])
    trusted = np.array([True] * 5 + [False])
    _, wide = Evidence().step({}, ids, x)
    _, narrow = Evidence().step({}, ids, x, trusted)
    assert wide[4] == 0.0  # the last client makes the cohort look heterogeneous
    assert narrow[4] == pytest.approx(0.6 / math.log(1.7) - 1)


@given(rounds, st.floats(0, 2))
def test_gathered_is_the_sum_of_a_clients_values_whoever_takes_part(played, forget):
    """A round adds at most 1 and takes off at most ``forget``; the sum is never below 0."""
    history = Gathered(forget)
    state, sums = history.init(), {}
    for now in played:
        state, scores = history.step(state, tuple(now), np.array(list(now.values())))
        for c, value in now.items():
            sums[c] = max(0.0, sums.get(c, 0.0) + max(min(value, 1.0), -forget))
        np.testing.assert_allclose(scores, [sums[c] for c in now], atol=1e-9)
    assert {c: row[0] for c, row in state.items()} == pytest.approx(sums, abs=1e-9)


@given(rounds)
def test_what_others_send_changes_nothing_of_what_is_gathered(played):
    """Each client has the sum that it would have alone, whichever clients are trusted."""
    together, alone = Gathered().init(), {c: Gathered().init() for c in "abcdef"}
    for now in played:
        ids, values = tuple(now), np.array(list(now.values()))
        together, scores = Gathered().step(together, ids, values, np.arange(len(ids)) % 2 == 0)
        for c, value, score in zip(ids, values, scores, strict=True):
            alone[c], own = Gathered().step(alone[c], (c,), np.array([value]))
            assert own[0] == score


def test_clear_evidence_grows_by_one_a_round_and_good_rounds_take_off_half_of_that():
    state, seen = Gathered().init(), []
    for value in [9.0] * 3 + [-0.03] * 5 + [-9.0] * 6:
        state, scores = Gathered().step(state, ("a",), np.array([value]))
        seen.append(scores[0])
    assert seen == pytest.approx([1, 2, 3, 2.97, 2.94, 2.91, 2.88, 2.85, 2.35, 1.85, 1.35, 0.85, 0.35, 0])


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": 1.0}, {"effect": 0.0}])
def test_options_outside_of_their_range(options):
    with pytest.raises(ConfigError, match="needs 0 < alpha < 1"):
        make("history", "evidence", **options)


def test_a_history_cannot_forget_less_than_nothing():
    for name in ("evidence", "gathered"):
        with pytest.raises(ConfigError, match="forget"):
            make("history", name, forget=-0.1)
