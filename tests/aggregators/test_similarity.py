"""FoolsGold over rounds, and clusters with a limit."""

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.aggregators.similarity import Clustered, FoolsGold, bipartition, foolsgold_weights
from fedwarden.updates.gram import cosines
from fedwarden_research.conformance import golden


def test_weights_are_those_of_the_paper_for_any_history():
    for seed in range(20):
        x = np.random.default_rng(seed).normal(0.3, 1.0, size=(6, 4))
        np.testing.assert_allclose(foolsgold_weights(cosines(x @ x.T)), golden.foolsgold_weights(x), atol=1e-9)


def test_history_is_summed_by_client_while_clients_come_and_go(cohort_of):
    rng, rule = np.random.default_rng(0), FoolsGold()
    state, sums = rule.init(), {}
    for t, present in enumerate(("abcdef", "acef", "bdf", "fedcba", "abg"), 1):
        x, weights = rng.normal(0.2, 1.0, size=(len(present), 9)), rng.uniform(0.2, 1.0, size=len(present))
        weights[1] = 0.0  # left out: neither used nor remembered
        state, result = rule.step(state, cohort_of(x, present, round=t), weights)
        here = [c for i, c in enumerate(present) if i != 1]
        for c, row in zip(here, np.delete(x, 1, axis=0), strict=True):
            sums[c] = sums.get(c, 0.0) + row
        trust = np.array(golden.foolsgold_weights(np.array([sums[c] for c in here]))) * np.delete(weights, 1)
        want = np.insert(trust / trust.sum(), 1, 0.0)
        np.testing.assert_allclose(result.weights, want, atol=1e-9)
        np.testing.assert_allclose(result.update, want @ x, atol=1e-9)
    assert set(state) == set(sums)
    for c in sums:
        np.testing.assert_allclose(state[c], sums[c], atol=1e-12)


def test_two_sybils_lose_their_weight_over_the_rounds(cohort_of):
    """A goal of length g under noise of d unit entries: the cosine of two sums over t rounds is t g^2 / (t g^2 + d)."""
    n, d, rng, rule = 8, 400, np.random.default_rng(1), FoolsGold()
    goal = rng.normal(size=d)
    goal *= 10 / np.linalg.norm(goal)
    state, shares, alike = rule.init(), [], []
    for t in range(1, 41):
        x = rng.normal(size=(n, d))
        x[:2] += goal
        state, result = rule.step(state, cohort_of(x, round=t), np.ones(n))
        shares.append(result.weights[:2].sum())
        alike.append(golden.cosine(state["a"].numpy(), state["b"].numpy()))
    np.testing.assert_allclose(alike, [t * 100 / (t * 100 + d) for t in range(1, 41)], atol=0.08)
    assert shares[0] == pytest.approx(2 / n)
    assert shares[-1] == 0.0
    assert (result.weights[2:] > 0).all()


def test_clients_that_all_agree_are_trusted_by_nobody():
    with pytest.raises(ValueError, match="foolsgold finds all 4 clients alike and trusts none of them"):
        fw.aggregate("foolsgold", np.ones((4, 3)))
    np.testing.assert_allclose(fw.aggregate("foolsgold", np.ones((1, 3))).update, 1.0)


ANGLES = np.deg2rad([0.0, 10.0, 20.0, 70.0, 75.0])  # cos 50 degrees = 0.643 is the most across the groups
FAN = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1)


@pytest.mark.parametrize(("limit", "group"), [(1.0, 3), (0.65, 3), (0.64, 5), (-1.0, 5)])
def test_a_split_needs_groups_that_are_unlike(limit, group):
    result = fw.aggregate("clustered", FAN, limit=limit)
    np.testing.assert_allclose(result.weights, [1 / group] * 3 + ([0.0] * 2 if group == 3 else [0.2] * 2))
    np.testing.assert_allclose(result.update, FAN[:group].mean(axis=0), atol=1e-9)


@pytest.mark.parametrize("weighted", [True, False])
def test_counts_weigh_within_the_larger_group_alone(weighted, cohort_of):
    counts, weights = np.array([1.0, 2.0, 3.0, 100.0, 100.0]), np.array([1.0, 0.5, 1.0, 1.0, 1.0])
    result = Clustered(weighted=weighted).step({}, cohort_of(FAN, counts=counts), weights)[1]
    want = [1, 1, 3, 0, 0] if weighted else [1, 0.5, 1, 0, 0]
    np.testing.assert_allclose(result.weights, np.array(want) / sum(want))


def test_groups_are_made_of_those_that_are_left(cohort_of):
    """Without two of the first group the other is the larger."""
    result = Clustered().step({}, cohort_of(FAN), np.array([1.0, 0.0, 0.0, 1.0, 1.0]))[1]
    np.testing.assert_allclose(result.weights, [0, 0, 0, 0.5, 0.5])
    with pytest.raises(ValueError, match="clustered needs n >= 3 clients; got n=2"):
        Clustered().step({}, cohort_of(FAN), np.array([1.0, 0.0, 0.0, 0.0, 1.0]))


def test_of_two_groups_of_one_size_the_closer_one_is_kept():
    angles = np.deg2rad([0.0, 30.0, 120.0, 125.0])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert bipartition(x @ x.T).tolist() == [False, False, True, True]
    assert bipartition((x @ x.T)[::-1, ::-1]).tolist() == [True, True, False, False]


def test_a_zero_update_is_like_nobody():
    x = np.vstack([FAN[:3], np.zeros((1, 2))])
    assert fw.aggregate("clustered", x).weights.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
