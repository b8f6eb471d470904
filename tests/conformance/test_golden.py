"""The golden loops against closed forms and scipy, and what only a loop with an order can say of bucketing."""

from itertools import permutations

import numpy as np
import pytest
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import pdist

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
    if not options and registered(name).__module__.startswith("fedwarden."):
        return  # test_check.py has that
    report = check("aggregator", name, **options)
    assert not report.broken
    assert report.excused == {**exempt}


def cases(n=9, d=5, many=5):
    return [draw(np.random.default_rng(seed), n, d) for seed in range(many)]


def test_the_best_split_of_all_is_the_cut_of_single_linkage():
    for rows in cases(8, 4, 8):
        groups = fcluster(linkage(pdist(rows, "cosine"), "single"), 2, "maxclust")
        larger, smaller = golden.bipartition(rows)
        assert len({groups[i] for i in larger}) == len({groups[i] for i in smaller}) == 1
        assert groups[larger[0]] != groups[smaller[0]]


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
