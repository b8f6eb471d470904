"""How often a guarded round reads the rows: once, and again only those that change the sum."""

from dataclasses import asdict
from functools import partial

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.updates import plain, updates

ROWS = np.random.default_rng(0).normal(size=(8, 50)) + 1.0
FAR = {"name": "robust_z", "limit": 20.0}


@pytest.fixture
def reads(monkeypatch):
    """The folds over the rows, in their order, and over how many rows each went."""
    seen = []

    def counted(name, fold):
        def count(rows, *arguments):
            seen.append((name, len(rows)))
            return fold(rows, *arguments)

        return count

    for name in ("survey", "weighted_sum", "gram", "ranked_mean", "nearest_mean", "sketch"):
        monkeypatch.setattr(plain, name, counted(name, getattr(plain, name)))
    return seen


def test_of_many_clients_no_products_of_whole_rows_are_formed(reads, monkeypatch):
    """Their rows are read for a survey and for sketches; products are those of sketches."""
    n, d, wide = 257, 600, []
    monkeypatch.setattr(updates, "SIZE", 64)
    monkeypatch.setattr(updates, "hashing", partial(updates.hashing, size=64))
    fold = plain.gram
    monkeypatch.setattr(plain, "gram", lambda rows, origin: wide.append(rows.d) or fold(rows, origin))
    rows = np.random.default_rng(0).normal(size=(n, d)) + 1.0
    fw.Warden.preset("auto").decide(fw.Cohort(1, tuple(map(str, range(n))), fw.Updates.of(rows), np.full(n, 10.0)))
    assert set(wide) == {64}
    assert reads.count(("survey", n)) <= 2  # of the rows, and of the sketches
    assert reads.count(("sketch", n)) == 1


def guarded(rows, measured=None):
    warden = fw.Warden([fw.Watch("centroid_distance", "raw", FAR, start_round=1)], "exclude")
    sent = fw.Updates.of(rows, measured=measured)
    return warden, warden.decide(fw.Cohort(1, tuple("abcdefgh"), sent, np.full(8, 10.0)))


def test_where_nobody_is_left_out(reads):
    warden, decision = guarded(ROWS)
    np.testing.assert_allclose(warden.combine(decision).update, ROWS.mean(axis=0))
    assert reads == [("survey", 8)]


def test_where_one_is_left_out(reads):
    rows = ROWS.copy()
    rows[3] += 9.0
    warden, decision = guarded(rows)
    np.testing.assert_allclose(warden.combine(decision).update, np.delete(rows, 3, axis=0).mean(axis=0))
    assert reads == [("survey", 8), ("weighted_sum", 1)]


def test_where_one_cannot_be_read(reads):
    rows = ROWS.copy()
    rows[3, 7] = np.inf
    warden, decision = guarded(rows)
    np.testing.assert_allclose(warden.combine(decision).update, np.delete(rows, 3, axis=0).mean(axis=0))
    assert reads == [("survey", 8), ("survey", 7)]


def test_the_same_decision_is_combined_twice():
    """Neither the aggregator nor what most agree on in a buffer is written to what was read."""
    warden, decision = guarded(ROWS, measured=[(0, 40)])
    known = decision.cohort.updates.known.total
    first, second = (warden.combine(decision).update for _ in range(2))
    assert torch.equal(first, second)
    np.testing.assert_allclose(first[:40], ROWS.mean(axis=0)[:40])
    np.testing.assert_allclose(known, ROWS.mean(axis=0))


def test_the_rows_that_came_carry_nothing_away():
    _, decision = guarded(ROWS)
    assert decision.came.updates.known is None


@pytest.mark.parametrize(("preset", "spread"), [("auto", False), ("none", False), ("pid_made", True)])
def test_distances_to_the_mean_are_measured_for_who_asks(preset, spread):
    decision = fw.Warden.preset(preset).decide(fw.Cohort(1, tuple("abcdefgh"), fw.Updates.of(ROWS), np.full(8, 10.0)))
    assert decision.cohort.updates.known.spread is spread


def test_a_signal_of_ones_own_may_ask_for_them_and_needs_no_word(reads):
    """Without ``spread`` it costs a read of its own, and gives the same."""
    found = []
    for asks in (True, False):

        class Far:
            spread = asks

            def __call__(self, cohort):
                return np.sqrt(cohort.updates.survey(cohort.reference, cohort.shares).sq_distances)

        watch = fw.Watch(Far(), "raw", FAR, start_round=1, name="far")
        cohort = fw.Cohort(1, tuple("abcdefgh"), fw.Updates.of(ROWS), np.full(8, 10.0))
        found.append(fw.Warden([watch], "exclude").decide(cohort).judgement.watches[0].signal)
    assert reads == [("survey", 8)] * 3
    np.testing.assert_array_equal(*found)


PRESETS = ("auto", "pid_made", "watch", "none", "groups")


def ask_for_products(cohort):
    """What nobody else may notice."""
    cohort.updates.gram(), cohort.updates.inner_products(), cohort.updates.cosines()


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("aggregator", ["mean", "krum"])
def test_a_decision_is_recorded_the_same_whatever_was_asked_of_the_rows_in_between(preset, aggregator):
    warden = fw.Warden.preset(preset, aggregator=aggregator)
    cohort = fw.Cohort(1, tuple("abcdefgh"), fw.Updates.of(ROWS), np.full(8, 10.0))
    decision = warden.decide(cohort)
    before = decision.record()
    ask_for_products(decision.cohort)
    ask_for_products(cohort)
    np.testing.assert_equal(asdict(decision.record()), asdict(before))
    assert bool(before.reported) == (preset not in ("pid_made", "none") or aggregator == "krum")


@pytest.mark.parametrize("preset", PRESETS)
def test_what_was_asked_of_the_rows_before_a_round_is_in_no_record(preset):
    records = []
    for ask in (False, True):
        cohort = fw.Cohort(1, tuple("abcdefgh"), fw.Updates.of(ROWS), np.full(8, 10.0))
        if ask:
            ask_for_products(cohort)
        records.append(fw.Warden.preset(preset, secret=1).step(cohort).record)
    assert records[0].reported.keys() == records[1].reported.keys()
