"""Mistakes seen in released libraries. Each is made here on purpose, so that the law is seen to reject it."""

from dataclasses import fields

import numpy as np
import pytest

from fedwarden.conformance.law import examine
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import registered
from fedwarden.core.registry import lookup, make
from fedwarden_research.conformance import golden
from fedwarden_research.conformance.rules import subject_of

LAW = {law.name: law for law in LAWS}


MISTAKES = []


def mistake(rule, *laws, says=""):
    """A faulty form of a rule, and the laws that rule it out."""

    def keep(faulty):
        MISTAKES.append(pytest.param(faulty, rule, laws, says, id=f"{rule}: {faulty.__name__}"))
        return faulty

    return keep


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


@mistake("krum", "near-agreement", says="let in")
def from_squared_norms_in_float32_attackers_are_admitted_when_clients_nearly_agree(rows, f):
    x = stack(rows)
    norms = (x**2).sum(axis=1)
    return x[krum_by(norms[:, None] + norms[None, :] - 2 * x @ x.T, f)]


@mistake("krum", "buffers")
def decided_by_the_counters_of_batch_norm(rows, f):
    x = stack(rows).astype(np.float64)
    return x[krum_by(exact_squares(x), f)]


@mistake("bulyan", "odd-n", "even-n")
def one_pass_of_multi_krum_in_place_of_the_recursion(rows, f):
    n = len(rows)
    chosen = rows[golden.ranking(rows, n - f - 2)[: n - 2 * f]]
    order = np.argsort(np.abs(chosen - np.median(chosen, axis=0)), axis=0)[: n - 4 * f]
    return np.take_along_axis(chosen, order, axis=0).mean(axis=0)


@mistake("bulyan", "below-precondition", says="returned nothing")
def nothing_is_returned_below_the_precondition(rows, f):
    return golden.bulyan(rows, f) if len(rows) >= 4 * f + 3 else None


@mistake("krum", "nan-client", says="not finite")
def one_client_of_nan_has_the_smallest_score(rows, f):
    x = np.asarray(rows)
    return x[krum_by(exact_squares(x), f)]


@mistake("mean", "claimed-examples", says="owns 100.0 %")
@mistake("multi_krum", "claimed-examples", says="owns 100.0 %")
def a_client_that_claims_a_billion_examples_owns_the_model(rows, f=0, m=None, num_examples=None):
    x, counts = np.asarray(rows), np.ones(len(rows)) if num_examples is None else num_examples
    best = golden.ranking(x, len(x) - f - 2)[:m]
    return np.average(x[best], axis=0, weights=counts[best])


@mistake("trimmed_mean", "defaults", says="n=3")
def a_share_of_few_clients_is_none(rows, b=None):
    return golden.trimmed_mean(rows, int(0.2 * len(rows)) if b is None else b)


@mistake("geometric_median", "odd-n", "permutation")
def weights_in_a_set_return_the_first_client(rows):
    weights = sorted({1 / len(rows) for _ in rows})  # equal weights collapse to one
    return sum(w / sum(weights) * row for w, row in zip(weights, rows, strict=False))


@mistake("trimmed_mean", "even-n", "permutation")
def clients_sorted_by_their_counts_keep_the_outlier(rows, b, num_examples=None):
    counts = np.arange(len(rows)) if num_examples is None else num_examples
    return rows[np.argsort(counts, kind="stable")][b : len(rows) - b].mean(axis=0)


@mistake("median", "even-n")
def of_an_even_number_the_lower_of_two(rows):
    return np.quantile(rows, 0.5, axis=0, method="lower")


@mistake("geometric_median", "odd-n", "scaling")  # the floor of 0.1 has a unit
def three_iterations_from_zero(rows, steps=3):
    z = np.zeros(rows.shape[1])
    for _ in range(steps):
        w = 1 / np.maximum(np.linalg.norm(rows - z, axis=1), 0.1)
        z = w @ rows / w.sum()
    return z


@mistake("krum", "odd-n", "even-n")
def n_minus_f_neighbours_in_place_of_n_minus_f_minus_2(rows, f):
    return rows[krum_by(exact_squares(rows), f, neighbours=len(rows) - f - 1)]


@pytest.mark.parametrize(("faulty", "rule", "laws", "says"), MISTAKES)
def test_a_law_rules_it_out_and_is_kept_by_ours(faulty, rule, laws, says):
    for law in laws:
        ours, theirs = (examine(subject_of(function, rule), LAW[law]) for function in (registered(rule), faulty))
        assert (ours.status, theirs.status) == ("kept", "broken"), (law, ours.note, theirs.note)
        assert says in theirs.note


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
