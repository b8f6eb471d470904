"""Mistakes seen in released libraries. Each is made here on purpose, so that the law is seen to reject it."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.aggregators.flanders import foretell
from fedwarden.conformance.law import examine
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import registered
from fedwarden.core.registry import lookup, make
from fedwarden_research.conformance import golden
from fedwarden_research.conformance.rules import subject_of

LAW = {law.name: law for law in LAWS}


def rules_out(law, rule, faulty, **options):
    """The law is kept by fedwarden and broken by the faulty function; returns what it says of the latter."""
    ours = examine(subject_of(registered(rule), rule, **options), LAW[law])
    assert ours.status == "kept", ours.note
    theirs = examine(subject_of(faulty, rule, **options), LAW[law])
    assert theirs.status == "broken", theirs.note
    return theirs.note


def keeps(law, rule, function, **options):
    return examine(subject_of(function, rule, **options), LAW[law]).status == "kept"


def stack(clients):
    """Clients as lists of layers, or rows, as one matrix in the widest type present."""
    if isinstance(clients, list):
        return np.stack([np.concatenate([np.ravel(layer) for layer in client]) for client in clients])
    return np.asarray(clients)


def krum_by(squares, f, neighbours=None):
    """The row that Krum picks from squared distances, itself counted out by its place in the order."""
    k = len(squares) - f - 2 if neighbours is None else neighbours
    return int(np.argmin(np.sort(squares, axis=1)[:, 1 : k + 1].sum(axis=1)))


def exact_squares(x):
    return np.array([[((a - b) ** 2).sum() for b in x] for a in x])


def test_krum_from_squared_norms_in_float32_admits_attackers_when_clients_nearly_agree():
    def faulty(rows, f):
        x = stack(rows)
        norms = (x**2).sum(axis=1)
        return x[krum_by(norms[:, None] + norms[None, :] - 2 * x @ x.T, f)]

    assert "let in" in rules_out("near-agreement", "krum", faulty)
    assert keeps("odd-n", "krum", faulty)  # in float64 nothing is lost, and no other law would see it


def test_krum_decided_by_the_counters_of_batch_norm():
    def faulty(rows, f):
        x = stack(rows).astype(np.float64)
        return x[krum_by(exact_squares(x), f)]

    rules_out("buffers", "krum", faulty)
    assert keeps("even-n", "krum", faulty)


def test_multi_krum_and_bulyan_decided_by_the_counters_of_batch_norm():
    for rule in ("multi_krum", "bulyan"):
        loop = getattr(golden, rule)
        rules_out("buffers", rule, lambda rows, loop=loop, **options: loop(stack(rows).astype(np.float64), **options))


def test_bulyan_with_one_pass_of_multi_krum_in_place_of_the_recursion():
    def faulty(rows, f):
        n = len(rows)
        chosen = rows[golden.ranking(rows, n - f - 2)[: n - 2 * f]]
        order = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0)[: n - 4 * f]
        return np.take_along_axis(chosen, order, axis=0).mean(axis=0)

    rules_out("odd-n", "bulyan", faulty)
    rules_out("even-n", "bulyan", faulty)


def test_bulyan_that_returns_nothing_below_its_precondition():
    def faulty(rows, f):
        return golden.bulyan(rows, f) if len(rows) >= 4 * f + 3 else None

    assert "returned nothing" in rules_out("below-precondition", "bulyan", faulty)
    with pytest.raises(ValueError, match=r"n >= 4f \+ 3 .*n=10, f=2"):
        fw.aggregate("bulyan", np.zeros((10, 3)), f=2)


@pytest.mark.parametrize("rule", ["mean", "median", "geometric_median", "krum"])
def test_one_client_of_nan_makes_the_model_nan(rule):
    def faulty(rows, **options):
        x = np.asarray(rows)
        if rule == "krum":
            return x[krum_by(exact_squares(x), **options)]  # the smallest of scores with NaN is NaN's own
        if rule == "geometric_median":
            z = x.mean(axis=0)
            for _ in range(50):
                w = 1 / np.maximum(np.linalg.norm(x - z, axis=1), 1e-9)
                z = w @ x / w.sum()
            return z
        return np.mean(x, axis=0) if rule == "mean" else np.median(x, axis=0)

    assert "not finite" in rules_out("nan-client", rule, faulty)


@pytest.mark.parametrize("rule", ["mean", "multi_krum"])
def test_a_client_that_claims_a_billion_examples_owns_the_model(rule):
    def faulty(rows, f=0, m=None, num_examples=None):
        x, counts = np.asarray(rows), np.ones(len(rows)) if num_examples is None else num_examples
        best = golden.ranking(x, len(x) - f - 2)[:m]
        return np.average(x[best], axis=0, weights=counts[best])

    assert "owns 100.0 %" in rules_out("claimed-examples", rule, faulty)


def test_a_trimmed_mean_that_cuts_a_share_of_few_clients_is_a_mean():
    def faulty(rows, b=None):
        cut = int(0.2 * len(rows)) if b is None else b
        return golden.trimmed_mean(rows, cut)

    assert "n=3" in rules_out("defaults", "trimmed_mean", faulty)
    assert faulty(np.array([[0.0], [0.0], [0.0], [4e6]])) == [1e6]
    assert fw.aggregate("trimmed_mean", np.array([[0.0], [0.0], [0.0], [4e6]])).update.tolist() == [0.0]


def test_a_geometric_median_with_its_weights_in_a_set_returns_the_first_client():
    def faulty(rows):
        weights = sorted({1 / len(rows) for _ in rows})  # equal weights collapse to one
        total = sum(weights)
        return sum(w / total * row for w, row in zip(weights, rows, strict=False))

    rules_out("odd-n", "geometric_median", faulty)
    rules_out("permutation", "geometric_median", faulty)


def test_a_trimmed_mean_that_sorts_clients_by_their_counts_keeps_the_outlier():
    def faulty(rows, b, num_examples=None):
        counts = np.arange(len(rows)) if num_examples is None else num_examples
        return rows[np.argsort(counts, kind="stable")][b : len(rows) - b].mean(axis=0)

    rules_out("even-n", "trimmed_mean", faulty)
    rules_out("permutation", "trimmed_mean", faulty)


@pytest.mark.parametrize("middle", ["lower", "higher"])
def test_a_median_of_an_even_number_that_is_the_lower_or_the_upper_of_two(middle):
    def faulty(rows):
        return np.quantile(rows, 0.5, axis=0, method=middle)

    rules_out("even-n", "median", faulty)
    assert keeps("odd-n", "median", faulty)
    assert fw.aggregate("median", np.array([[1.0], [2.0], [5.0], [100.0]])).update.tolist() == [3.5]


def test_a_trimmed_mean_that_keeps_the_maximum():
    def faulty(rows, b):
        return np.sort(rows, axis=0)[b:].mean(axis=0)

    rules_out("odd-n", "trimmed_mean", faulty)


def test_a_geometric_median_of_three_iterations_from_zero():
    def faulty(rows, steps=3):
        z = np.zeros(rows.shape[1])
        for _ in range(steps):
            w = 1 / np.maximum(np.linalg.norm(rows - z, axis=1), 0.1)
            z = w @ rows / w.sum()
        return z

    rules_out("odd-n", "geometric_median", faulty)
    rules_out("scaling", "geometric_median", faulty)  # the floor of 0.1 has a unit
    points = np.array([[0.0], [4.0], [100.0]])
    assert abs(faulty(points)[0] - 4.0) > 0.1
    assert fw.aggregate("geometric_median", points).update.item() == pytest.approx(4.0, abs=1e-3)


def test_a_geometric_median_whose_weights_compound():
    def faulty(rows):
        weights = np.full(len(rows), 1.0)
        for _ in range(50):
            z = weights @ rows / weights.sum()
            weights = weights / np.maximum(np.linalg.norm(rows - z, axis=1), 1e-9)
            weights = weights / weights.sum()
        return weights @ rows

    rules_out("odd-n", "geometric_median", faulty)


@pytest.mark.parametrize("rule", ["krum", "multi_krum"])
def test_krum_that_squares_the_distances_twice(rule):
    def faulty(rows, f, m=1):
        fourth = exact_squares(rows) ** 2
        scores = np.sort(fourth, axis=1)[:, 1 : len(rows) - f - 1].sum(axis=1)
        return rows[np.argsort(scores)[:m]].mean(axis=0)

    assert "cases differ" in rules_out("odd-n", rule, faulty)


def test_krum_with_n_minus_f_neighbours_in_place_of_n_minus_f_minus_2():
    def faulty(rows, f):
        return rows[krum_by(exact_squares(rows), f, neighbours=len(rows) - f - 1)]

    rules_out("odd-n", "krum", faulty)
    rules_out("even-n", "krum", faulty)


def series(rounds=8):
    """Matrices that follow X_t = A X_{t-1} B exactly, and the one that comes next."""
    rng = np.random.default_rng(0)
    a = np.array([[0.9, -0.3], [0.4, 0.8]])
    b = np.eye(3) + 0.2 * rng.normal(size=(3, 3))
    x = [rng.normal(5.0, 1.0, size=(2, 3))]
    for _ in range(rounds):
        x.append(a @ x[-1] @ b)
    return x[:-1], x[-1]


def alternate(pairs, steps=500):
    """A and B of the least squares over pairs (before, after), by turns: the loop of arXiv 2303.16668."""
    a, b = np.eye(2), np.eye(3)
    for _ in range(steps):
        left = sum(y @ (x @ b).T for x, y in pairs)
        a = left @ np.linalg.pinv(sum(x @ b @ (x @ b).T for x, _ in pairs))
        b = np.linalg.pinv(sum((a @ x).T @ (a @ x) for x, _ in pairs)) @ sum((a @ x).T @ y for x, y in pairs)
    return a, b


def misses(forecast):
    """How far a forecast of the exact series is off, relative to it."""
    past, after = series()
    return float(np.abs(forecast(past) - after).max() / np.abs(after).max())


def test_an_autoregression_that_wraps_to_the_last_step_or_is_fitted_to_other_units_than_it_forecasts():
    def right(past):
        a, b = alternate(list(pairwise(past)))
        return a @ past[-1] @ b

    def wraps(past):
        a, b = alternate([(past[t - 1], past[t]) for t in range(len(past))])
        return a @ past[-1] @ b

    def normalises(past):
        low, high = min(x.min() for x in past), max(x.max() for x in past)
        scaled = [(x - low) / high for x in past]
        a, b = alternate(list(pairwise(scaled)))
        return a @ past[-1] @ b

    assert misses(lambda past: foretell(past, ridge=1e-12, steps=500)) < 1e-3
    assert misses(right) < 1e-3
    assert misses(wraps) > 1e-2
    assert misses(normalises) > 1e-2


@pytest.mark.parametrize("f", [0, 1, 3, 4])
def test_flanders_is_not_told_the_number_of_attackers(f, cohort_of):
    """Keeping a given number of clients either keeps an attacker or loses an honest one."""
    n, d, rng = 10, 60, np.random.default_rng(1)
    rule = make("aggregator", "flanders")
    assert not {"f", "m", "keep", "attackers"} & {field.name for field in fields(lookup("aggregator", "flanders"))}
    state, drift = rule.init(), rng.normal(size=d)
    for t in range(1, 6):
        rows = drift / t + 0.1 * rng.normal(size=(n, d))
        if t == 5:
            rows[:f] += 10.0 * rng.normal(size=(f, d))
        state, result = rule.step(state, cohort_of(rows, round=t), np.ones(n))
    assert np.flatnonzero(result.weights == 0).tolist() == list(range(f))
    kept = np.argsort(np.linalg.norm(rows - drift / 5, axis=1))[: n - 2]  # told that there are two
    assert set(kept.tolist()) != set(range(f, n))


def guard():
    return fw.Warden([fw.Watch("centroid_distance", "pid", "gesd", start_round=1)], policy="quarantine")


def attacked(t=1, n=12, size=3.0):
    rows = np.random.default_rng(t).normal(size=(n, 20))
    rows[4] += size
    return rows


def judged_before(play):
    """Nobody who is flagged in a round is in the model of that round."""
    update, flagged = play(attacked())
    return flagged.any() and np.allclose(update, attacked()[~flagged].mean(axis=0), atol=1e-6)


def test_a_guard_that_scores_after_aggregating(cohort_of):
    def ours(rows):
        outcome = guard().step(cohort_of(rows))
        return outcome.update.numpy(), outcome.record.flagged

    def faulty(rows):
        update = rows.mean(axis=0)
        return update, fw.gesd(np.linalg.norm(rows - update, axis=1))

    assert judged_before(ours)
    assert not judged_before(faulty)


def apart_from_the_removed(scores_of):
    """The scores of those in good standing do not depend on what a removed client sends."""
    near, far = (np.delete(scores_of(attacked(2, size=size)), 4) for size in (3.0, 50.0))
    return np.allclose(near, far, rtol=1e-6)


def test_a_guard_whose_removed_clients_still_pull_the_centroid(cohort_of):
    def ours(rows):
        warden = guard()
        warden.step(cohort_of(attacked(1)))
        assert warden.excluded == ("e",)
        return warden.step(cohort_of(rows, round=2)).record.watches[0].signal

    def faulty(rows):
        return np.linalg.norm(rows - rows.mean(axis=0), axis=1)

    assert apart_from_the_removed(ours)
    assert not apart_from_the_removed(faulty)


def finds(flag, f, n=20):
    """Whether f plain outliers among n scores are found, all of them and nobody else."""
    scores = np.random.default_rng(0).normal(5.0, 0.5, size=n)
    scores[:f] += 1e3
    return np.flatnonzero(flag(scores)).tolist() == list(range(f))


def test_mean_plus_k_sigma_masks_from_a_sixth_of_the_clients_on():
    def faulty(scores):
        return scores > scores.mean() + 2.33 * scores.std()

    assert all(finds(lambda scores: make("rule", "gesd")(scores, 1).flagged, f) for f in range(1, 10))
    assert finds(faulty, 3)
    assert not any(finds(faulty, f) for f in range(4, 10))  # 4 / 20 > 1 / (1 + 2.33 ** 2) = 0.156
    scores = np.where(np.arange(20) < 4, 1e3, np.linspace(4, 6, 20))
    assert "mask each other" in str(fw.KSigma(2.33)(scores, 1).warning)
