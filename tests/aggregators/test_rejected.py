"""A reply that is rejected counts against f: one client can neither stop a rule nor disarm it."""

import warnings

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.core.types import Cohort, Rejection
from fedwarden.guard.limits import Admission
from fedwarden.guard.warden import Warden
from fedwarden_research.conformance import golden

SMALLEST = [("bulyan", "f", 2, 11), ("krum", "f", 2, 7), ("trimmed_mean", "b", 3, 7)]
LOOSE = Admission(norm_ratio=None)


def rows(n, seed=0):
    return np.random.default_rng(seed).normal(size=(n, 6))


def one_round(warden, x, t=1, rejected=(), ids=None):
    ids = tuple(map(str, range(len(x)))) if ids is None else ids
    return warden.step(Cohort(t, ids, fw.Updates.of(x), np.full(len(x), 10.0), torch.zeros(6)), rejected)


@pytest.mark.parametrize(("rule", "option", "f", "n"), SMALLEST)
def test_a_client_that_sends_nan_does_not_stop_a_rule_at_its_smallest_n(rule, option, f, n):
    warden = Warden(aggregator={"name": rule, option: f})
    for t in range(1, 21):
        x = rows(n, seed=t)
        x[3] = np.nan
        outcome = one_round(warden, x, t)
        want = getattr(golden, rule)(np.delete(x, 3, axis=0), f - 1)
        np.testing.assert_allclose(outcome.update, want, atol=1e-9)
        assert [r.client_id for r in outcome.record.rejected] == ["3"]
        np.testing.assert_allclose(fw.aggregate(rule, x, **{option: f}).update, want, atol=1e-9)


@pytest.mark.parametrize(("rule", "option", "f", "n"), SMALLEST)
@pytest.mark.parametrize("kind", ["no_answer", "failed"])
def test_a_client_that_is_away_leaves_f_as_it_is_and_the_round_is_skipped_with_a_line(rule, option, f, n, kind):
    warden = Warden(aggregator={"name": rule, option: f})
    away = Rejection("away", Note.of(kind, error="a crash"))
    outcome = one_round(warden, rows(n - 1), rejected=[away])
    assert not outcome.update.any()
    assert [note.kind for note in outcome.record.notes] == ["aggregator_failed"]
    assert f"n={n - 1}" in str(outcome.record.notes[0])
    there = one_round(warden, rows(n), rejected=[away])
    np.testing.assert_allclose(there.update, getattr(golden, rule)(rows(n), f), atol=1e-9)


def test_messages_that_are_no_replies_of_their_own_do_not_lower_f():
    """Of an attacker that answers twice, in another's name, or as a client that nobody knows."""
    surplus = [
        Rejection("0", Note.of("answered_twice")),
        Rejection("unknown", Note.of("other_name", asked=1, node=2)),
        Rejection("unknown", Note.of("not_asked", node=3)),
        Rejection("sybil", Note.of("unknown_client", known=6)),
        Rejection("away", Note.of("no_answer")),
        Rejection("slow", Note.of("model_gone")),
    ]
    outcome = one_round(Warden(aggregator={"name": "krum", "f": 2}), rows(6), rejected=surplus)
    assert [note.kind for note in outcome.record.notes] == ["aggregator_failed"]


def test_a_client_that_is_rejected_for_several_replies_counts_once():
    twice = [Rejection("x", Note.of("sent_nothing")), Rejection("x", Note.of("idle"))]
    outcome = one_round(Warden(aggregator={"name": "bulyan", "f": 3}), rows(10), rejected=twice)
    assert [note.kind for note in outcome.record.notes] == ["aggregator_failed"]  # two of 3 are left: they need 11


def test_honest_clients_with_a_fault_do_not_disarm_a_rule():
    """Three sites have no data in this round, and b = 3: by 0 the rule would be the mean, which one attacker owns."""
    x = rows(12)
    x[0] = 1e6
    counts = np.array([10.0] * 9 + [0.0] * 3)
    cohort = Cohort(1, tuple(map(str, range(12))), fw.Updates.of(x), counts, torch.zeros(6))
    outcome = Warden(aggregator={"name": "trimmed_mean", "b": 3}, admission=LOOSE).step(cohort)
    assert len(outcome.record.rejected) == 3
    np.testing.assert_allclose(outcome.update, golden.trimmed_mean(x[:9], 3), atol=1e-9)


@pytest.mark.parametrize("outer", ["nearest_neighbour_mixing", "arc", "bucketing"])
def test_rules_inside_of_others_learn_of_rejected_replies(outer):
    inside = {"name": "krum", "f": 2}
    n = 14 if outer == "bucketing" else 7
    options = {} if outer == "bucketing" else {"f": 2}
    x = rows(n)
    x[[1, 2]] = np.nan
    result = fw.aggregate({"name": outer, "then": inside, **options}, x)
    assert result.update.isfinite().all()


def test_multi_krum_keeps_as_many_as_it_was_asked_for():
    """Of 9 clients with f = 3 it may combine 6; of the 8 that are left, 6 with f = 2 and 5 with f = 3."""
    x = rows(9)
    x[8] = np.inf
    want = golden.multi_krum(x[:8], 2, 6)
    np.testing.assert_allclose(fw.aggregate("multi_krum", x, f=3, m=6).update, want, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_that_is_dropped_for_its_size_is_warned_about(dtype):
    x = rows(5).astype(dtype)
    x[1] = 1e20
    with pytest.warns(UserWarning, match=r"row 1 of 5 is left out: its norm is more than 1e\+15"):
        result = fw.aggregate("mean", x)
    assert result.weights[1] == 0
    x[1] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fw.aggregate("mean", x)
