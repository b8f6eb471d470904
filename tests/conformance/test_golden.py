"""The golden loops against closed forms and scipy, and what only a loop with an order can say of bucketing."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import minimize
from scipy.spatial.distance import pdist
from scipy.stats import trim_mean

import fedwarden as fw
from fedwarden.conformance import check
from fedwarden.conformance.law import examine
from fedwarden.conformance.laws import LAWS, draw
from fedwarden.conformance.subject import registered
from fedwarden.core.registry import exemptions
from fedwarden_research.conformance import golden
from fedwarden_research.conformance.rules import RULES, subject_of

LAW = {law.name: law for law in LAWS}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_paper_and_keeps_the_laws(name, one_thread):
    """As a function that the suite calls, and as a component; f is as many as the rule tolerates there."""
    rule, exempt = RULES[name], exemptions("aggregator", name)
    subject = subject_of(registered(name), name, registered=True)
    found = {law.name: examine(subject, law, exempt) for law in LAWS}
    assert not {law: f for law, f in found.items() if f.status == "broken"}
    options = {key: value for key, value in rule.options.items() if key != "f" and not callable(value)}
    report = check("aggregator", name, **options)
    assert not report.broken
    assert report.excused == {**exempt}


def cases(n=9, d=5, many=5):
    return [draw(np.random.default_rng(seed), n, d) for seed in range(many)]


def test_coordinate_rules_are_those_of_numpy_and_scipy():
    for rows in cases(10):
        np.testing.assert_allclose(golden.mean(rows), rows.mean(axis=0))
        np.testing.assert_allclose(golden.median(rows), np.median(rows, axis=0))
        np.testing.assert_allclose(golden.trimmed_mean(rows, 2), trim_mean(rows, 0.2))


def test_the_geometric_median_has_no_less_sum_of_distances_than_a_minimiser_finds():
    for rows in cases():

        def total(z, rows=rows):
            return np.linalg.norm(rows - z, axis=1).sum()

        best = minimize(total, np.median(rows, axis=0), method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12})
        assert total(golden.geometric_median(rows)) <= best.fun + 1e-8


def test_the_geometric_median_may_be_a_client():
    rows = np.array([[0.0, 0.0], [1.0, 0.0], [-1.0, 0.1], [0.0, 1.0], [0.0, -1.0]])
    assert golden.geometric_median(rows).tolist() == [0.0, 0.0]
    assert golden.geometric_median(np.repeat([[2.0, 3.0]], 4, axis=0)).tolist() == [2.0, 3.0]


def test_the_best_split_of_all_is_the_cut_of_single_linkage():
    for rows in cases(8, 4, 8):
        groups = fcluster(linkage(pdist(rows, "cosine"), "single"), 2, "maxclust")
        larger, smaller = golden.bipartition(rows)
        assert len({groups[i] for i in larger}) == len({groups[i] for i in smaller}) == 1
        assert groups[larger[0]] != groups[smaller[0]]


def test_with_no_attackers_bulyan_and_mixing_are_means():
    for rows in cases():
        np.testing.assert_allclose(golden.bulyan(rows, 0), rows.mean(axis=0))
        np.testing.assert_allclose(golden.nearest_neighbour_mixing(rows, 0, golden.median), rows.mean(axis=0))
        np.testing.assert_allclose(golden.bucketing(rows, 3, range(9), golden.mean), rows.mean(axis=0))


def test_centred_clipping_with_a_wide_radius_is_the_mean_and_clipping_to_nothing_stays_at_the_centre():
    for rows in cases():
        np.testing.assert_allclose(golden.centered_clipping(rows, 1e9, 1), rows.mean(axis=0))
        centre = np.full(5, 2.0)
        np.testing.assert_allclose(golden.centered_clipping(rows, 1e-12, 3, centre), centre, atol=1e-9)
        np.testing.assert_allclose(golden.norm_clipping(rows, 1e9), rows.mean(axis=0))


def test_fltrust_gives_the_root_back_to_clients_that_agree_with_it():
    root = np.array([1.0, 2.0, 2.0])
    np.testing.assert_allclose(golden.fltrust(np.array([root, 5 * root, -root]), root), root)
    assert golden.fltrust(np.array([-root, -root]), root).tolist() == [0.0, 0.0, 0.0]


def test_foolsgold_trusts_whoever_has_no_twin():
    weights = golden.foolsgold_weights(np.array([[1.0, 0.0, 0.1], [1.0, 0.0, 0.11], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert weights[:2] == [0.0, 0.0]
    assert weights[2:] == [1.0, 1.0]


def test_bucketing_is_the_loop_for_one_of_all_orders():
    rows = cases(6, 3, 1)[0]
    got = fw.aggregate("bucketing", rows, s=2, then="median").update.numpy()
    wanted = (golden.bucketing(rows, 2, order, golden.median) for order in permutations(range(6)))
    assert any(np.allclose(got, want, atol=1e-9) for want in wanted)


@pytest.mark.parametrize("f", [1, 2])
def test_bulyan_does_not_depend_on_the_order_where_one_neighbour_is_left(f):
    """The last picks have one neighbour, with which the closest pair ties."""
    for law in ("permutation", "odd-n", "even-n"):
        assert examine(subject_of(registered("bulyan"), "bulyan", f=f), LAW[law]).status == "kept"


@pytest.mark.parametrize(
    ("rule", "options"), [("trimmed_mean", {"b": 1}), ("krum", {"f": 0}), ("multi_krum", {"m": 1})]
)
def test_laws_at_other_options(rule, options):
    for law in LAWS:
        finding = examine(subject_of(registered(rule), rule, **options), law)
        assert finding.status != "broken", (law.name, finding.note)
