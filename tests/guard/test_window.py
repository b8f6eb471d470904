"""A few replies judged beside a window of earlier updates: only they are weighed, and only they are remembered."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden import Cohort, Updates
from fedwarden.core.errors import ConfigError
from fedwarden.core.notes import Note
from fedwarden.core.reported import STALENESS
from fedwarden.core.types import Rejection
from fedwarden.guard.decide import decide
from fedwarden.guard.replay import replay
from fedwarden.guard.window import WINDOW, Window, refuse_jurors

IDS = [f"c{i}" for i in range(12)]
D = 400


def rows(seed, flip=()):
    rng = np.random.default_rng(seed)
    common = rng.normal(size=D)
    return np.array([(-1 if i in flip else 1) * common + rng.normal(size=D) for i in range(len(IDS))], np.float32)


def cohort(x, replies, t=1, ages=()):
    """The replies of some clients, with the updates of all others as context."""
    context = [i not in replies for i in range(len(IDS))]
    return Cohort(t, IDS, Updates.of(x), np.full(len(IDS), 10.0), context=context, ages=ages)


def played(flip, rounds, replies_of):
    guard, decisions = fw.Warden.preset("auto", alike=True, secret=1).guard, []
    memory = guard.blank()
    for t in range(1, rounds + 1):
        memory, decision = decide(guard, memory, cohort(rows(t, flip), replies_of(t), t))
        decisions.append(decision)
    return memory, decisions


def test_a_single_reply_is_measured_as_in_a_round_of_all():
    guard = fw.Warden.preset("auto", secret=1).guard
    _, whole = decide(guard, guard.blank(), cohort(rows(1, {3}), range(12)))
    for i in (0, 3):
        _, single = decide(guard, guard.blank(), cohort(rows(1, {3}), {i}))
        assert single.came.client_ids == single.cohort.client_ids == (IDS[i],)
        assert len(single.weights) == len(single.factors) == single.rows.n == len(single.record().client_ids) == 1
        for one, all in zip(single.measured.readings, whole.measured.readings, strict=True):
            assert one.values == pytest.approx(all.values[[i]])


def test_only_those_that_replied_are_remembered():
    memory, _ = played({3}, 6, lambda t: {0, 3})
    known = {client for state in memory.histories for client in state}
    assert known == {"c0", "c3"}
    assert set(memory.seen) == {"c0", "c3"}
    assert memory.doubted == {"c3"}


def test_single_replies_bring_an_attacker_out_after_as_many_as_rounds_of_all_do():
    def first_out(decisions):
        return next(n for n, d in enumerate(decisions, 1) if "c3" in d.came.client_ids and not d.record().weights.all())

    _, all_of_them = played({3}, 8, lambda t: range(12))
    _, one_by_one = played({3}, 8, lambda t: {3})
    assert first_out(all_of_them) == first_out(one_by_one)
    _, honest = played({3}, 8, lambda t: {5})
    assert all(d.weights.tolist() == [1.0] for d in honest)


def test_an_excluded_client_stays_so_while_others_reply():
    guard = fw.Warden(
        [fw.Watch("relative_distance", rule={"name": "offset", "limit": 0.3}, start_round=1)], "quarantine"
    )
    memory = guard.guard.blank()
    x = rows(1)
    x[3] *= 50
    memory, first = decide(guard.guard, memory, cohort(x, {3}))
    assert first.excluded == ("c3",)
    memory, second = decide(guard.guard, memory, cohort(rows(2), {4, 5}, 2))
    assert second.excluded == ("c3",)
    assert second.weights.tolist() == [1.0, 1.0]
    x[7] *= 50  # an outlier in the window is nobody's business in this round
    _, third = decide(guard.guard, memory, cohort(x, {4}, 3))
    assert third.excluded == ("c3",)


def test_a_copy_of_an_earlier_update_has_no_vote_and_takes_none():
    x = rows(1)
    x[6] = x[2]
    guard = fw.Warden.preset("auto", secret=1).guard
    memory, copied = decide(guard, guard.blank(), cohort(x, {6}))
    assert copied.weights.tolist() == [0.0]
    _, own = decide(guard, memory, cohort(rows(2), {2}, 2))
    assert own.weights.tolist() == [1.0]


def test_a_reply_that_is_no_number_costs_its_buffer_alone():
    guard = fw.Warden.preset("auto", secret=1).guard
    before, _ = decide(guard, guard.blank(), cohort(rows(1), range(12)))
    x = rows(2)
    x[0] = np.nan
    after, decision = decide(guard, before, cohort(x, {0}, 2))
    assert [(r.client_id, r.reason.kind) for r in decision.rejected] == [("c0", "update_not_finite")]
    assert [note.kind for note in decision.notes] == ["no_usable_reply"]
    assert after == before
    assert decision.came.client_ids == ("c0",)
    x = rows(2)
    x[1] = np.inf  # in the window: left out of it, without a word
    _, decision = decide(guard, before, cohort(x, {0}, 2))
    assert decision.rejected == ()
    assert decision.weights.tolist() == [1.0]


def test_newcomers_share_what_the_replies_allow_whoever_else_is_in_the_window():
    """Three known clients and two newcomers answer; seven others, of which six are new too, are in the window."""
    guard = fw.Warden.preset("auto", secret=1).guard
    memory = replace(guard.blank(), seen=dict.fromkeys((*IDS[:3], IDS[11]), (9.0,)))
    _, decision = decide(guard, memory, cohort(rows(1), range(5)))
    assert decision.weights.tolist() == [1.0, 1.0, 1.0, 0.5, 0.5]


def test_a_client_in_the_window_whose_reply_is_rejected_counts_as_one_that_is():
    guard = fw.Warden.preset("auto", secret=1).guard
    refused = [Rejection(IDS[7], Note.of("sent_nothing"))]
    _, decision = decide(guard, guard.blank(), cohort(rows(1), range(5)), refused)
    assert decision.cohort.rejected == 1


def test_old_updates_move_the_model_less():
    x = rows(1)
    warden = fw.Warden.preset("none")
    outcome = warden.step(cohort(x, {0, 1}, ages=[3.0, 0.0] + [0.0] * 10))
    np.testing.assert_allclose(outcome.update.numpy(), (x[0] / 2 + x[1]) / 2, rtol=1e-5)
    assert outcome.weights.tolist() == [0.5, 0.5]


def test_a_window_has_the_latest_update_of_the_clients_that_answered_last():
    window = Window()
    assert (window.size(1), window.size(40)) == (WINDOW // 2, 40)
    for t in range(60):
        reply = Cohort(t + 1, [str(t % 30)], Updates.of(np.array([[float(t)]])), [1.0])
        window = window.after(reply, {str(t % 30): t})
    assert window.size(1) == 1
    reply = Cohort(61, ["29"], Updates.of(np.array([[7.0]]), torch.tensor([5.0], dtype=torch.float64)), [1.0])
    found = window.beside(reply, {"29": 58})
    assert found.client_ids == (*map(str, range(9, 29)), "29")
    assert found.context.tolist() == [True] * 20 + [False]
    assert found.ages.tolist() == [60.0 - (30 + i) for i in range(9, 29)] + [2.0]
    assert found.reported == {STALENESS: {"29": 2.0}}
    rows = torch.cat([block for _, _, block in found.updates.blocks()], dim=1)
    assert rows[:, 0].tolist() == [*(30.0 + i for i in range(9, 29)), 2.0]
    again = Window.load(window.state_dict())
    assert [(e.client_id, e.count, e.version, e.row.tolist()) for e in again.entries] == [
        (e.client_id, e.count, e.version, e.row.tolist()) for e in window.entries
    ]


def test_what_needs_whole_rounds_is_refused():
    with pytest.raises(ConfigError, match="no round: leave jurors out"):
        refuse_jurors(fw.Warden.preset("auto", jurors=["a", "b"]).guard)
    warden = fw.Warden.preset("auto")
    told = Cohort(1, IDS, Updates.of(rows(1)), np.ones(12), reported={STALENESS: {"c0": 0.0}})
    with pytest.raises(ConfigError, match="asynchronous run cannot be judged again"):
        replay([warden.step(told).record], fw.Warden.preset("auto"))
