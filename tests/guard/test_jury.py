"""Jurors: what their reports and the turns of the round before prove, and what liars can make of it."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.core.reported import WORSE
from fedwarden.core.types import Word
from fedwarden.guard.config import GuardConfig, alter, guard_table
from fedwarden.guard.journal import experiment
from fedwarden.guard.jury import RECENT, Hearings, jurors_number, surprises, turns_of, worse
from fedwarden.guard.replay import replay

N, D = 10, 40
IDS = tuple("abcdefghij")
JURORS = ("h", "i", "j")
COMMON = np.random.default_rng(0).normal(size=D)


def guard(jurors=JURORS, secret=1, **more):
    return fw.Warden.preset("auto", jurors=jurors, secret=secret, **more)


def rows(t, odd):
    """Updates that agree, but for those of odd clients, which lie in directions of their own and are put in doubt."""
    rng = np.random.default_rng([3, t])
    found = COMMON + 0.3 * rng.normal(size=(N, D))
    for i in (IDS.index(c) for c in odd):
        found[i] = 4 * np.random.default_rng([7, i]).normal(size=D) + 0.3 * rng.normal(size=D)
    return found


def play(warden, rounds, odd="ab", report=lambda t, inside: 0.5, reporters=JURORS, words=None):
    """Rounds in which these clients report a number that follows from who was in the model of the round before."""
    records, inside = [], {}
    for t in range(1, rounds + 1):
        said = (words or {}).get(t, Word())
        asked = tuple(c for c in IDS if warden.asks(c, said))
        told = {WORSE: {c: report(t, inside) for c in reporters}} if t > 1 else {}
        index = [IDS.index(c) for c in asked]
        cohort = fw.Cohort(t, asked, fw.Updates.of(rows(t, odd)[index]), np.full(len(asked), 10.0), reported=told)
        records.append(warden.step(cohort, word=said).record)
        inside = {c: w > 0 for c, w in zip(asked, records[-1].weights.tolist(), strict=True)}
    return records


def harming(*clients, effect=0.2, seed=0):
    """Jurors' losses that rise in the rounds after these clients were in the model."""
    return lambda t, inside: float(
        np.clip(0.4 + effect * sum(inside.get(c, False) for c in clients)
                + 0.1 * np.random.default_rng([seed, t]).normal(), 0, 1)
    )  # fmt: skip


# formulas


@pytest.mark.parametrize("seed", range(5))
def test_surprises_are_the_formula_in_a_loop(seed):
    rng = np.random.default_rng(seed)
    m, k = 12, 3
    coins, y, x, now = rng.normal(size=(m, k)), rng.random(m), rng.normal(size=k), rng.random()
    b = np.linalg.solve(coins.T @ coins + np.eye(k), coins.T @ (y - y.mean()))
    left = np.array([y[t] - y.mean() - sum(b[j] * coins[t, j] for j in range(k)) for t in range(m)])
    s = math.sqrt(((left - left.mean()) ** 2).mean())
    want = [max(-2.0, min(2.0, (now - y.mean() - sum(b[j] * x[j] for j in range(k) if j != i)) / s)) for i in range(k)]
    np.testing.assert_allclose(surprises(now, x, y, coins), want)


def test_a_surprise_does_not_hang_on_the_clients_own_coin():
    """That makes the bet fair: given all else, (c - p) r has the mean 0 under c ~ Bernoulli(p)."""
    rng = np.random.default_rng(1)
    coins, y = rng.normal(size=(20, 3)), rng.random(20)
    for c in (0.0, 1.0):
        other = surprises(0.7, np.array([c - 0.3, 0.2, -0.4]), y, coins)
        assert other[0] == pytest.approx(surprises(0.7, np.array([-0.3, 0.2, -0.4]), y, coins)[0])


@pytest.mark.parametrize("liar", [0.0, 1.0])
def test_one_liar_of_three_moves_the_number_no_farther_than_an_honest_juror(liar):
    assert 0.3 <= jurors_number({"a": 0.3, "b": 0.4, "c": liar}, "abc") <= 0.4


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf, 1e300, -1.0, 1.01])
def test_what_is_no_share_is_no_report(number):
    assert jurors_number({"a": number, "b": 0.5}, "ab") == 0.5
    assert jurors_number({"a": number}, "a") is None


def test_a_loss_that_is_no_number_rose():
    assert worse(np.array([np.nan, np.inf, 1.0, np.nan]), np.array([1.0, 2.0, np.nan, np.nan])) == 0.5
    assert worse(np.zeros(0), np.zeros(0)) == 0.0


def test_only_a_coin_is_a_turn():
    assert turns_of(("a", "b", "c"), np.array([0.0, 1.0, 0.5]), np.array([0.0, 1.0, 1.0])) == {"c": (1.0, 0.5)}


def test_hearings_remember_so_many_rounds():
    hearings = Hearings()
    for t in range(2 * RECENT):
        hearings, _ = replace(hearings, turns={"a": (1.0, 0.5)}).hear({"h": t / 1000}, {"h"})
    assert [number for number, _ in hearings.past] == [t / 1000 for t in range(RECENT, 2 * RECENT)]


# the guarantee


def test_capital_reaches_its_threshold_in_at_most_alpha_of_runs_without_effect():
    """200 runs of 60 rounds with four clients each, chances that change, and losses that drift and jump.

    Ville: K >= 20 with probability at most .05 for each client, and K >= 20 k for any of the k clients of a run.
    """
    runs, rounds, k = 200, 60, 4
    capital = make("history", "capital", clip=2.0, effect=0.0, times_clients=False)
    ids, rng = tuple(f"{r} {i}" for r in range(runs) for i in range(k)), np.random.default_rng(5)
    state, largest = capital.init(), np.zeros(runs * k)
    hearings = [Hearings() for _ in range(runs)]
    level, swing = rng.random(runs), 0.02 + 0.2 * rng.random(runs)
    for t in range(rounds):
        level = np.clip(level + swing * rng.normal(size=runs) + 0.3 * (t == 30), 0, 1)
        values = np.zeros((runs, k))
        for r in range(runs):
            p = rng.choice([0.1, 0.5, 0.9], size=k)
            turns = {str(i): (float(rng.random() < p[i]), float(p[i])) for i in range(k)}
            hearings[r], tried = replace(hearings[r], turns=turns).hear({"h": float(level[r])}, {"h"})
            values[r] = [tried.get(str(i), 0.0) for i in range(k)]
        state, _ = capital.step(state, ids, values.reshape(-1))
        largest = np.maximum(largest, capital.against(state, ids)[0])
    assert (largest > math.log(20)).sum() <= 0.05 * runs * k
    assert (largest.reshape(runs, k).max(axis=1) > math.log(20 * k)).sum() <= 0.05 * runs


@pytest.fixture(scope="module")
def harmed():
    """A run in which client a harms and client b, in doubt as well, does not."""
    warden = guard()
    return warden, play(warden, 150, report=harming("a", effect=0.4))


def test_a_client_that_harms_is_excluded_and_the_other_one_in_doubt_is_not(harmed):
    warden, records = harmed
    assert warden.excluded == ("a",)
    assert records[-1].watches[-1].name == "jury"
    first = next(r for r in records if "a" in r.excluded)
    assert first.round > 20  # not by one round's numbers
    assert first.flagged[first.client_ids.index("a")]


def test_without_jurors_there_is_no_such_watch_and_no_bit_changes():
    plain = fw.Warden.preset("auto", secret=1)
    a = play(plain, 30, report=harming("a"))
    b = play(fw.Warden.preset("auto", secret=1), 30, report=lambda t, inside: math.nan, reporters=())
    assert [w.name for w in plain.watches] == ["distance", "opposition", "length", "lone weights"]
    assert all(x.weights.tolist() == y.weights.tolist() for x, y in zip(a, b, strict=True))
    assert plain.state_dict()["hearings"] == {"turns": {}, "past": []}


def test_harm_that_jurors_measure_lowers_the_chance_but_leaves_a_coin():
    warden = guard()
    play(warden, 60, report=harming("a", effect=0.4))
    chances = {client: p for client, (_, p) in warden.memory.hearings.turns.items()}
    assert chances["a"] < 0.2
    assert chances["b"] > 2 * chances["a"]


# attacks


def test_a_reporter_that_is_not_named_changes_nothing():
    """Attackers who report by the coins of a victim, in place of jurors."""
    for reporters in (("c", "d", "e"), ("a",), IDS[:7]):
        warden, silent = guard(), guard()
        a = play(warden, 60, report=lambda t, inside: float(inside.get("b", False)), reporters=reporters)
        b = play(silent, 60, reporters=())
        assert all(x.weights.tolist() == y.weights.tolist() for x, y in zip(a, b, strict=True))
        assert warden.memory.hearings.past == silent.memory.hearings.past == ()
        assert warden.excluded == ()


@pytest.mark.parametrize("number", [0.0, 1.0, 0.5, math.nan, math.inf, -1e300, 1e300])
def test_a_juror_that_always_says_the_same_gets_nobody_excluded(number):
    warden = guard(jurors=("j",))
    play(warden, 80, report=lambda t, inside: number, reporters=("j",))
    assert warden.excluded == ()
    log_capital, log_help = warden.watches[-1].history.against(warden.memory.histories[-1], IDS)
    assert not log_capital.any()
    assert not log_help.any()


def test_a_juror_in_doubt_or_excluded_does_not_judge():
    """The attack: a juror that is in doubt itself reports against another client."""
    warden = guard(jurors=("a",))
    play(warden, 60, report=lambda t, inside: float(inside.get("b", False)), reporters=("a",))
    settled = [number for number, coins in warden.memory.hearings.past if coins]
    assert settled == []
    hearings, tried = Hearings({"a": (1.0, 0.5), "b": (0.0, 0.5)}).hear({"a": 1.0}, {"a"})
    assert (hearings, tried) == (Hearings(), {})


def test_a_client_that_the_operator_frees_or_excludes_has_no_coin():
    for said in (Word(trusted=frozenset("a")), Word(excluded=frozenset("a")), Word(observing=True)):
        warden = guard()
        play(warden, 20, words=dict.fromkeys(range(1, 21), said))
        assert "a" not in warden.memory.hearings.turns
        assert ("b" in warden.memory.hearings.turns) == (not said.observing)


def test_without_an_answer_from_any_juror_nothing_is_heard_and_the_message_names_them():
    warden = guard()
    records = play(warden, 3, reporters=("h",))
    assert not [n for n in records[0].notes if n.kind == "jurors_silent"]
    (note,) = [n for n in records[2].notes if n.kind == "jurors_silent"]
    assert str(note) == (
        "clients i and j reported no number 'train/worse' from 0 to 1, which a juror sends with its update: "
        "see docs/how-to/jurors.md"
    )


def test_jurors_that_never_answer_are_named_too():
    """A name that no node has is in no reply, and the server of a running federation cannot know all names."""
    records = play(guard(jurors=("Bern",)), 2)
    assert [n.clients for n in records[1].notes if n.kind == "jurors_silent"] == [("Bern",)]


# the same again


def test_a_replay_draws_and_decides_the_same(harmed):
    live = harmed[1]
    again = replay(live, guard())
    assert live[-1].excluded == again[-1].excluded == ("a",)
    for one, other in zip(live, again, strict=True):
        assert (one.weights > 0).tolist() == (other.weights > 0).tolist()
        np.testing.assert_array_equal(one.watches[-1].scores, other.watches[-1].scores)


def test_a_resumed_guard_goes_on_with_the_same_bits():
    report = harming("a")
    whole, half = guard(), guard()
    play(whole, 60, report=report)
    records = play(half, 30, report=report)
    inside = {c: w > 0 for c, w in zip(IDS, records[-1].weights.tolist(), strict=True)}
    other = guard(secret=5)
    other.load_state_dict(json.loads(json.dumps(half.state_dict(), default=dict)))
    for t in range(31, 61):
        told = {WORSE: {c: report(t, inside) for c in JURORS}}
        cohort = fw.Cohort(t, IDS, fw.Updates.of(rows(t, "ab")), np.full(N, 10.0), reported=told)
        inside = dict(zip(IDS, (other.step(cohort).weights > 0).tolist(), strict=True))
    a, b = (json.dumps(w.state_dict(), default=dict, sort_keys=True) for w in (whole, other))
    assert a == b


# configuration


def test_jurors_in_a_configuration():
    warden = GuardConfig(jurors=("h", "i")).build(frozenset(IDS), 3)
    assert warden.guard.jurors == {"h", "i"}
    assert [w.name for w in warden.watches][-1] == "jury"
    assert guard_table(warden)["jurors"] == ["h", "i"]
    assert alter(warden, ["quorum=5"]).guard.jurors == {"h", "i"}
    with pytest.raises(ConfigError, match=r"guard.jurors: there is no client 'Bren'; did you mean 'Bern'\?"):
        GuardConfig(jurors=("Bren",)).build(frozenset({"Bern", "Graz"}))
    with pytest.raises(ConfigError, match="jurors are heard by a watch with the signal 'jury'"):
        fw.Warden.preset("pid-made", jurors=["a"])
    with pytest.raises(ConfigError, match=r"jurors is a list of clients, as \['Bern'\]; got 'Bern'"):
        fw.Warden.preset("auto", jurors="Bern")


def test_a_run_is_not_continued_with_other_jurors():
    parts = [experiment(["FedAvg"], w, (), ()) for w in (guard(), guard(jurors=("h",)), guard())]
    assert parts[0] == parts[2] != parts[1]
