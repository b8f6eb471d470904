"""Once training has settled: nobody is flagged for noise, and nobody can do more than the median client."""

from __future__ import annotations

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.guard.config import GuardConfig
from fedwarden.guard.decide import typical_length
from fedwarden.guard.replay import replay

N, D = 10, 400


def rounds(lengths, far=0.0, seed=0):
    """Rounds of honest clients that agree on half of what they do; one lies ``far`` times as far from the others."""
    rng = np.random.default_rng(seed)
    for t, length in enumerate(lengths, start=1):
        rows = rng.normal(size=(1, D)) + rng.normal(size=(N, D))
        rows[0] += far * rng.normal(size=D)
        yield t, rows * length / np.sqrt(2 * D)


def play(warden, found, cohort_of):
    return [warden.step(cohort_of(rows, round=t)) for t, rows in found]


def test_who_differs_is_excluded_while_the_model_learns(cohort_of):
    last = play(fw.Warden.preset("auto"), rounds([1.0] * 12, far=3.0), cohort_of)[-1]
    assert last.record.excluded == ("a",)


def test_who_differs_only_once_the_model_has_learnt_is_not(cohort_of):
    """What is left of an update is noise then, and a client with an odd sample has more of it than the others."""
    warden = fw.Warden.preset("auto")
    play(warden, rounds([1.0] * 5), cohort_of)
    late = [(t + 5, rows) for t, rows in rounds([0.1] * 60, far=3.0)]
    outcomes = play(warden, late, cohort_of)
    assert not any(o.record.flagged.any() or o.record.excluded for o in outcomes)
    assert all((o.weights > 0).all() for o in outcomes)


def test_nobody_moves_a_settled_model_by_more_than_the_median_client(cohort_of):
    warden = fw.Warden.preset("auto")
    play(warden, rounds([1.0] * 5), cohort_of)
    [(_, rows)] = rounds([0.1])
    length = np.median(np.linalg.norm(rows, axis=1))
    rows[0] *= 1e3
    update = warden.step(cohort_of(rows, round=6)).update.numpy()
    without = warden.step(cohort_of(np.delete(rows, 0, axis=0), ids=list("bcdefghij"), round=7)).update.numpy()
    assert np.linalg.norm(N * update - (N - 1) * without) <= 1.1 * length


def test_updates_that_grow_again_are_judged_again(cohort_of):
    warden = fw.Warden.preset("auto")
    lengths = [1.0] * 5 + [0.1] * 20 + [0.6] * 12
    play(warden, rounds(lengths[:25]), cohort_of)
    found = [(t + 25, rows) for t, rows in rounds(lengths[25:], far=3.0)]
    assert play(warden, found, cohort_of)[-1].record.excluded == ("a",)


@pytest.mark.parametrize("theirs", [1e-9, 1e9])
def test_a_minority_cannot_make_training_look_settled(cohort_of, theirs):
    """Neither by tiny updates in one round, nor by huge ones in an earlier round."""
    warden = fw.Warden.preset("auto")
    for t, rows in rounds([1.0] * 8):
        rows[:4] *= theirs if t == 3 else 1.0
        cohort = cohort_of(rows, round=t)
        assert not warden.guard.settled(warden.memory, typical_length(cohort))
        warden.step(cohort)


def test_a_round_of_attackers_does_not_end_the_watch(cohort_of):
    """Where few are asked, most of one round may be attackers."""
    warden = fw.Warden.preset("auto")
    play(warden, rounds([1.0] * 3), cohort_of)
    [(_, rows)] = rounds([1.0])
    rows[:8] *= 1e9
    warden.step(cohort_of(rows, round=4))
    found = [(t + 4, rows) for t, rows in rounds([0.6] * 12, far=3.0)]
    assert "a" in play(warden, found, cohort_of)[-1].record.excluded


def test_a_replay_settles_as_the_run_did(cohort_of):
    found = [*rounds([1.0] * 5), *((t + 5, rows) for t, rows in rounds([0.1] * 20, far=3.0))]
    live = fw.Warden.preset("auto")
    records = [o.record for o in play(live, found, cohort_of)]
    again = replay(records, fw.Warden.preset("auto"))
    assert [r.flagged.tolist() for r in again] == [r.flagged.tolist() for r in records]
    assert not any(r.excluded for r in again)
    unsettled = replay(records, GuardConfig(settle=0.0).build())
    assert unsettled[-1].excluded == ("a",)


def test_what_was_longest_is_carried_over(cohort_of):
    warden = fw.Warden.preset("auto")
    play(warden, rounds([1.0] * 3), cohort_of)
    other = fw.Warden.preset("auto")
    other.load_state_dict(warden.state_dict())
    assert other.memory.longest == warden.memory.longest > 0
