"""Jurors that are sent one of two models: who gets which, what the gap proves, and what one liar can do."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.core.reported import WORSE
from fedwarden.core.types import Word
from fedwarden.guard.config import GuardConfig, alter, guard_table
from fedwarden.guard.decide import Decision
from fedwarden.guard.grouped import Grouped
from fedwarden.guard.groups import Groups
from fedwarden.guard.journal import experiment
from fedwarden.guard.judge import Judgement
from fedwarden.guard.jury import Hearings, Pair, drawn_pair, gap
from fedwarden.guard.replay import replay

from .test_jury import IDS, JURORS, D, N, guard, harming, play, rows

PARAMS = torch.arange(float(D))


def paired(jurors=JURORS, **more):
    return guard(jurors, paired=True, **more)


def judged(warden, rounds, effect, liars=(), odd="ab", words=None):
    """Rounds in which jurors report by the model that each was sent; ``effect`` by client. Liars blame client b."""
    records, before = [], {}
    for t in range(1, rounds + 1):
        said = (words or {}).get(t, Word())
        asked = tuple(c for c in IDS if warden.asks(c, said))
        level = float(np.random.default_rng([4, t]).uniform(0.2, 0.6))  # of the round, the same for all jurors
        told, pair = {}, warden.memory.hearings.pair
        for j in JURORS:
            has = dict(before)
            if pair is not None:
                has[pair.client] = j in pair.having
            noise = 0.03 * np.random.default_rng([5, t, ord(j)]).normal()
            told[j] = float(np.clip(level + sum(effect.get(c, 0.0) for c in has if has[c]) + noise, 0, 1))
            if j in liars:
                told[j] = float(has.get("b", False))
        reported = {WORSE: told} if t > 1 else {}
        index = [IDS.index(c) for c in asked]
        updates = fw.Updates.of(rows(t, odd)[index])
        cohort = fw.Cohort(t, asked, updates, np.full(len(asked), 10.0), reported=reported)
        records.append(warden.step(cohort, word=said).record)
        before = {c: w > 0 for c, w in zip(asked, records[-1].weights.tolist(), strict=True)}
    return records


# who is sent which model


def test_every_split_is_as_likely_as_the_opposite_one_and_every_client_as_another():
    turns = {"b": (1.0, 0.5), "a": (0.0, 0.5)}
    drawn = [drawn_pair(turns, "hij", 3, t) for t in range(6000)]
    splits = Counter((p.having, p.lacking) for p in drawn)
    assert len(splits) == 6  # one of three alone, on either side
    assert all(abs(many - 1000) < 4 * math.sqrt(1000) for many in splits.values())
    clients = Counter((p.client, p.inside) for p in drawn)
    assert set(clients) == {("a", False), ("b", True)}
    assert abs(clients["a", False] - 3000) < 4 * math.sqrt(1500)


def test_a_draw_hangs_on_secret_and_round_alone():
    turns = {"a": (1.0, 0.5)}
    assert drawn_pair(turns, ("i", "h", "j"), 1, 5) == drawn_pair(turns, {"j", "h", "i"}, 1, 5)
    assert len({str(drawn_pair(turns, "hij", secret, 5)) for secret in range(20)}) > 1


def test_no_pair_without_a_client_in_doubt_or_with_one_juror_left():
    turns = {"a": (1.0, 0.5), "h": (1.0, 0.5)}
    assert drawn_pair({}, "hij", 1, 1) is None
    assert drawn_pair(turns, "hi", 1, 1) is None
    assert {*(p := drawn_pair(turns, "hij", 1, 1)).having, *p.lacking} == {"i", "j"}


@pytest.mark.parametrize(("inside", "apart"), [(True, ("j",)), (False, ("h", "i"))])
def test_apart_are_those_whose_model_does_not_become_the_next_one(inside, apart):
    assert Pair("a", inside, ("h", "i"), ("j",)).apart == apart


def test_the_other_model_is_the_mean_with_or_without_the_tested_client():
    """Against weighted means that are formed from the rows."""
    warden, seen = paired(), set()
    for t in range(1, 30):
        cohort = fw.Cohort(t, IDS, fw.Updates.of(rows(t, "ab")), np.full(N, 10.0), params=PARAMS)
        decision = warden.decide(cohort)
        if decision.pair is None:
            assert warden.apart == ()
            continue
        x = np.diag(decision.factors) @ rows(t, "ab").astype(np.float32)
        kept = decision.weights > 0
        i = IDS.index(decision.pair.client)
        assert kept[i] == decision.pair.inside
        other = kept.copy()
        other[i] = not kept[i]
        want = x[other].mean(axis=0) - x[kept].mean(axis=0)
        np.testing.assert_allclose(decision.shift, want, atol=1e-5)
        for c in IDS:
            apart = c in decision.pair.apart
            assert torch.equal(warden.sent(c, PARAMS), PARAMS + decision.shift.float() if apart else PARAMS)
        seen.add(decision.pair.inside)
    assert seen == {True, False}


def test_buffers_are_the_same_in_both_models():
    warden = paired()
    for t in range(1, 12):
        updates = fw.Updates.of(torch.tensor(rows(t, "ab")).float(), measured=[(0, D - 5)])
        warden.decide(fw.Cohort(t, IDS, updates, np.full(N, 10.0)))
    assert warden.shift[:-5].abs().min() > 0
    assert not warden.shift[-5:].any()


def test_a_client_in_doubt_that_is_the_only_one_has_its_whole_update_in_the_other_model():
    """All other clients are out, and so is the tested one by its coin."""
    updates = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    cohort = fw.Cohort(1, ("a", "b"), fw.Updates.of(updates), np.full(2, 10.0))
    nothing = {"excluded": (), "suspended": (), "rejected": (), "notes": (), "weights": np.zeros(2)}
    nothing["rows"] = cohort.updates
    judged, pair = Judgement(alone=np.zeros(2, bool)), Pair("a", False, ("i",), ("h",))
    decision = Decision(came=cohort, cohort=cohort, factors=np.ones(2), judgement=judged, pair=pair, **nothing)
    assert decision.shift.tolist() == [1.0, 2.0]


def test_a_round_without_a_reply_leaves_the_two_models_as_they_are():
    warden = paired()
    judged(warden, 10, {})
    shift, apart = warden.shift, warden.apart
    warden.step(fw.Cohort(11, (), fw.Updates.empty(D), []))
    assert warden.apart == apart != ()
    assert torch.equal(warden.shift, shift)


# what the reports prove


def test_the_gap_is_that_of_medians_and_the_first_one_has_nothing_to_be_compared_with():
    pair = Pair("a", True, ("f", "g", "h"), ("i", "j"))
    reports = {"f": 0.9, "g": 0.5, "h": 0.4, "i": 0.2, "j": 0.4, "x": 1.0}
    assert gap(reports, pair) == pytest.approx(0.2)
    assert gap(reports, pair, "f") == pytest.approx(0.15)
    assert gap({"f": 1.0}, pair) == 0.0
    first, tried, without = Hearings({}, (), pair).compare(reports, "fghij")
    assert (tried, first.pair, [g for g, _ in first.past]) == ({}, None, [pytest.approx(0.2)])
    assert without == {j: {} for j in "fghij"}
    assert first.held == {"f": 0.5, "g": 0.5, "h": 0.5, "i": -0.5, "j": -0.5, "x": 0.0}
    reports = {"f": 0.3, "g": 0.2, "h": 0.1, "i": 0.4, "j": 0.2}  # a gap of -.1, and .2 for what they compare with
    _, tried, without = replace(first, pair=pair).compare(reports, "fghij")
    assert tried == {"a": pytest.approx(2 * (0.1 - 0.05) / 0.2)}
    assert without["i"] == {"a": pytest.approx(2 * (0.2 - 0.05) / 0.2)}


def test_capital_without_effect_reaches_its_threshold_in_at_most_alpha_of_the_runs():
    """150 runs of 60 rounds with three clients, jurors whose levels differ and drift, and rounds that jump."""
    runs, rounds, clients = 150, 60, "abc"
    capital = make("history", "capital", clip=2.0, effect=0.0, times_clients=False)
    rng, largest = np.random.default_rng(6), np.zeros((runs, len(clients)))
    for r in range(runs):
        state, hearings = capital.init(), Hearings()
        own = 0.2 * rng.random(3)
        for t in range(rounds):
            pair = drawn_pair(dict.fromkeys(clients, (1.0, 0.5)), JURORS, r, t)
            common = 0.7 * rng.random() ** 3
            own = np.clip(own + 0.03 * rng.normal(size=3), 0, 0.3)
            reports = dict(zip(JURORS, (common + own).tolist(), strict=True))
            hearings, tried, without = replace(hearings, pair=pair).compare(reports, JURORS)
            z = np.array([[some.get(c, 0.0) for c in clients] for some in (tried, *without.values())])
            state, _ = capital.step(state, tuple(clients), z.T)
        largest[r] = np.max([largest[r], np.array(capital.against(state, tuple(clients))[0])], axis=0)
    assert (largest > math.log(20)).sum() <= 0.05 * largest.size


@pytest.fixture(scope="module")
def harmed():
    warden = paired()
    return warden, judged(warden, 80, {"a": 0.2})


def test_a_client_that_harms_is_excluded_sooner_than_by_coins_and_the_other_one_is_not(harmed):
    warden, records = harmed
    assert warden.excluded == ("a",)
    first = next(r.round for r in records if r.excluded)
    coins = guard()
    judged(coins, first, {"a": 0.2})
    assert coins.excluded == ()
    assert first > 10  # not by a few rounds' numbers


def test_a_client_that_harms_nobody_is_never_excluded():
    for secret in range(4):
        warden = paired(secret=secret)
        judged(warden, 80, {"a": -0.1})
        assert warden.excluded == ()


@pytest.mark.parametrize("liar", JURORS)
def test_one_liar_of_three_that_knows_the_models_excludes_no_client(liar):
    warden = paired()
    judged(warden, 150, {}, liars=(liar,))
    assert warden.excluded == ()


def test_two_liars_of_three_are_believed():
    warden = paired()
    judged(warden, 150, {}, liars=("h", "i"))
    assert warden.excluded == ("b",)


@pytest.mark.parametrize("said", [Word(trusted=frozenset("ab")), Word(observing=True)])
def test_no_juror_is_sent_another_model_for_a_client_on_which_no_watch_acts(said):
    warden = paired()
    judged(warden, 12, {}, words=dict.fromkeys(range(1, 13), said))
    assert warden.apart == ()
    assert not len(warden.shift)


def test_a_named_client_that_is_excluded_is_sent_nothing():
    warden = paired(jurors=(*JURORS, "g"))
    judged(warden, 30, {}, words=dict.fromkeys(range(1, 31), Word(excluded=frozenset("g"))))
    pair = warden.memory.hearings.pair
    assert "g" not in (*pair.having, *pair.lacking)


# the same again


def test_a_replay_draws_and_decides_the_same(harmed):
    live = harmed[1]
    again = replay(live, paired())
    for one, other in zip(live, again, strict=True):
        assert (one.weights > 0).tolist() == (other.weights > 0).tolist()
        assert one.excluded == other.excluded
        np.testing.assert_array_equal(one.watches[-1].scores, other.watches[-1].scores)


def test_a_resumed_guard_sends_the_same_models():
    half, other = paired(), paired(secret=5)
    judged(half, 20, {"a": 0.2})
    state = half.state_dict()
    plain = json.loads(json.dumps({k: v for k, v in state.items() if k != "paired"}, default=dict))
    table = {k: list(v) if isinstance(v, tuple) else v for k, v in state["paired"].items()}
    other.load_state_dict({**plain, "paired": table})
    assert other.apart == half.apart
    assert torch.equal(other.sent("h", PARAMS), half.sent("h", PARAMS))
    assert other.memory.hearings.pair == half.memory.hearings.pair


def test_without_pairs_nothing_of_them_is_remembered_and_no_bit_changes():
    warden = guard()
    play(warden, 20, report=harming("a"))
    assert warden.state_dict()["paired"] == {}
    assert warden.apart == ()
    assert warden.sent("h", PARAMS) is PARAMS


# configuration


def test_pairs_in_a_configuration():
    warden = GuardConfig(jurors=("h", "i"), paired=True).build(frozenset(IDS), 3)
    assert warden.guard.paired
    assert guard_table(warden)["paired"] is True
    assert alter(warden, ["quorum=5"]).guard.paired
    assert not GuardConfig(jurors=("h", "i")).build(frozenset(IDS), 3).guard.paired


@pytest.mark.parametrize(("jurors", "many"), [((), 0), (("h",), 1)])
def test_pairs_without_jurors_are_refused(jurors, many):
    wanted = f"paired sends each juror one of two models and needs 2 jurors or more; got {many}: name them in jurors"
    with pytest.raises(ConfigError, match=wanted):
        fw.Warden.preset("auto", jurors=jurors, paired=True)
    with pytest.raises(ConfigError, match=wanted):
        GuardConfig(jurors=jurors, paired=True).build(frozenset(IDS))


def test_what_knows_one_model_a_round_is_refused():
    with pytest.raises(ConfigError, match="paired sends clients two models, and receive knows one: call step"):
        paired().receive([], [torch.zeros(D)], 1)


@pytest.mark.parametrize("more", [{}, {"paired": True}])
def test_jurors_within_groups_are_refused(more):
    with pytest.raises(
        ConfigError, match=r"a group hides its members' reports: got h, i and j; leave guard.jurors out"
    ):
        Grouped(guard(**more), Groups(size=3))
    assert Grouped(guard(**more), Groups(size=1)).guard.jurors == set(JURORS)


def test_a_run_is_not_continued_with_pairs_where_it_began_without():
    parts = [experiment(["FedAvg"], w, (), ()) for w in (guard(), paired(), guard(paired=False))]
    assert parts[0] == parts[2] != parts[1]
