"""The operator's word in a guard: trusted, excluded, readmitted, observing; live, in groups and in a replay."""

from functools import partial

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.types import Word
from fedwarden.guard.grouped import Grouped
from fedwarden.guard.groups import Groups
from fedwarden.guard.replay import replay
from fedwarden.guard.telling import lines
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Ledger
from fedwarden.store.word import NOTES, Said, said_in, say, word_of

N, D = 10, 400
IDS = tuple("abcdefghij")
COMMON = np.random.default_rng(0).normal(size=D)
GUARDS = {
    "auto": lambda **more: fw.Warden.preset("auto", **{"secret": 1, **more}),
    "auto, alike": lambda **more: fw.Warden.preset("auto", alike=True, **more),
    "pid-made": lambda **more: fw.Warden.preset("pid-made", **more),
    "for the round": lambda **more: fw.Warden.preset("pid-made", policy="exclude", **more),
    "down-weight": lambda **more: fw.Warden.preset("pid-made", policy="down_weight", **more),
}


def word(trusted="", excluded="", readmitted="", observing=False):
    return Word(frozenset(trusted), frozenset(excluded), frozenset(readmitted), observing)


def cohort(t, clients=IDS, far="a", factor=-3.0):
    """Honest rows that agree, and one client that pulls the other way."""
    rng = np.random.default_rng(t)
    rows = COMMON + 0.8 * rng.normal(size=(N, D))
    rows[[IDS.index(c) for c in far]] *= factor
    rows = rows[[IDS.index(c) for c in clients]]
    return fw.Cohort(t, clients, fw.Updates.of(rows), np.full(len(clients), 10.0))


def play(warden, words, far="a"):
    """Rounds from 1 on, each with its word and the clients that are asked; their records."""
    records = []
    for t, said in enumerate(words, start=1):
        asked = tuple(c for c in IDS if warden.asks(c, said))
        records.append(warden.step(cohort(t, asked, far), word=said).record)
    return records


def weight(record, client):
    return dict(zip(record.client_ids, record.weights.tolist(), strict=True)).get(client, 0.0)


@pytest.mark.parametrize("guard", GUARDS)
def test_without_a_word_the_attacker_loses_its_weight(guard):
    records = play(GUARDS[guard](), [Word()] * 8)
    if guard == "auto":  # it is in the model in nine rounds of ten, and flagged in all of them
        assert all(r.flagged[0] for r in records[3:])
    else:
        assert weight(records[-1], "a") < 0.09


@pytest.mark.parametrize("guard", GUARDS)
def test_no_watch_acts_on_a_trusted_client(guard):
    for warden, said in ((GUARDS[guard](), word("a")), (GUARDS[guard](trusted=["a"]), Word())):
        records = play(warden, [said] * 8)
        decision = warden.decide(cohort(9), word=said)
        assert all(r.excluded == () for r in records)
        assert all(weight(r, "a") > 0 for r in records)
        assert decision.weights[0] == 1
        lengths = decision.cohort.updates.lengths()
        limit = (warden.guard.shorten or np.inf) * np.median(lengths[1:])
        assert decision.factors[0] == pytest.approx(min(1.0, limit / lengths[0])), "as for any other client"
        assert not decision.judgement.doubted[0]
        assert any(r.flagged[0] for r in records), "that it stands out is recorded"
        assert not {note.kind for r in records for note in r.notes} & {"suspended", "left_out", "let_in", "on_trial"}


@pytest.mark.parametrize("guard", GUARDS)
def test_admission_and_the_limit_of_length_hold_for_a_trusted_client(guard):
    warden, said = GUARDS[guard](), word("abc")
    rows = COMMON + 0.8 * np.random.default_rng(1).normal(size=(N, D))
    rows[0] *= np.nan
    rows[1] *= 1e9
    rows[2] *= 50
    found = warden.decide(fw.Cohort(1, IDS, fw.Updates.of(rows), np.full(N, 10.0)), word=said)
    assert {r.client_id: r.reason.kind for r in found.rejected} == {"a": "update_not_finite", "b": "update_too_long"}
    if guard.startswith("auto"):
        limit = 1.5 if "alike" in guard else 3.0
        assert found.factors[0] == pytest.approx(limit / 50, rel=0.2), "shortened to some times the median"
    assert warden.combine(found).update.isfinite().all()


@pytest.mark.parametrize("guard", GUARDS)
def test_an_excluded_client_is_not_asked_and_weighs_nothing(guard):
    warden = GUARDS[guard]()
    records = play(warden, [Word(), *[word(excluded="h")] * 3], far="")
    assert "h" in records[0].client_ids
    assert all("h" not in r.client_ids for r in records[1:])
    assert all(r.excluded == ("h",) and r.suspended == () for r in records[1:])
    outcome = warden.step(cohort(5, far=""), word=word(excluded="h"))  # it answers all the same
    assert outcome.weights[IDS.index("h")] == 0
    assert outcome.record.excluded == ("h",)
    assert not warden.asks("h", word(excluded="h"))


def test_the_operator_excludes_a_client_that_it_trusts():
    warden = fw.Warden.preset("auto", trusted=["h"])
    outcome = warden.step(cohort(1, far=""), word=word(trusted="h", excluded="h"))
    assert weight(outcome.record, "h") == 0
    assert outcome.record.excluded == ("h",)


@pytest.mark.parametrize("guard", ["auto", "auto, alike", "pid-made"])
def test_a_readmitted_client_is_judged_as_a_new_one(guard):
    warden = GUARDS[guard]()
    play(warden, [Word()] * 8)
    assert warden.excluded == (("a",) if guard == "pid-made" else ())
    assert warden.memory.doubted == (frozenset() if guard == "pid-made" else {"a"})
    before = [dict(h) for h in warden.memory.histories]
    assert any("a" in h for h in before)
    records = [warden.step(cohort(t, far=""), word=word(readmitted="a" if t == 9 else "")).record for t in range(9, 16)]
    assert all(r.excluded == () and weight(r, "a") > 0 for r in records)
    assert not any(r.flagged[0] for r in records)
    fresh = GUARDS[guard]()
    fresh.step(cohort(9, far=""))
    for mine, new in zip(warden.memory.histories, fresh.memory.histories, strict=True):
        assert ("a" in mine) == ("a" in new)


@pytest.mark.parametrize("guard", GUARDS)
def test_while_observing_everything_is_judged_and_nobody_is_left_out(guard):
    warden, watching = GUARDS[guard](), word(observing=True)
    records = play(warden, [Word()] * 4 + [watching] * 6)
    for record in records[4:]:
        assert record.client_ids == IDS
        assert record.excluded == record.suspended == ()
        assert (record.weights > 0).all()
    assert records[-1].flagged[0]
    assert (warden.decide(cohort(11), word=watching).weights == 1).all()
    again = [warden.step(cohort(t)).record for t in (12, 13)]
    assert all(r.flagged[0] for r in again), "enforced again on what was gathered"
    assert guard == "auto" or all(weight(r, "a") < 0.09 for r in again)


@pytest.mark.parametrize("said", [word("a"), word(observing=True)])
def test_nothing_is_cut_for_a_client_that_no_watch_may_act_on(said):
    """Weights that the client alone moves stay as it sent them."""
    rows = COMMON + 0.1 * np.random.default_rng(1).normal(size=(N, D))
    rows[:, :20] = 0.0
    rows[0, :20] = 3.0
    came = fw.Cohort(1, IDS, fw.Updates.of(rows), np.full(N, 10.0))
    cut, kept = (GUARDS["auto"]().step(came, word=given) for given in (Word(), said))
    assert not cut.update[:20].any()
    np.testing.assert_allclose(kept.update[:20], 0.3)
    assert any(w.flagged[0] for w in kept.record.watches if w.name == "lone weights")


def test_the_operators_exclusion_holds_while_observing():
    record = GUARDS["auto"]().step(cohort(1), word=word(excluded="h", observing=True)).record
    assert record.excluded == ("h",)
    assert weight(record, "h") == 0


def test_the_word_holds_in_a_round_without_a_usable_reply():
    warden = GUARDS["pid-made"]()
    play(warden, [Word()] * 3)
    nobody = fw.Cohort(4, (), fw.Updates.empty(D), [])
    record = warden.step(nobody, word=word(excluded="h", readmitted="a")).record
    assert record.excluded == ("h",)
    assert all("a" not in history for history in warden.memory.histories)
    warden.heed(word(readmitted="h"))
    assert warden.excluded == ()


def test_a_log_has_a_line_of_the_operators_exclusion_and_none_of_a_watchs():
    record = GUARDS["auto"]().step(cohort(1, IDS[:-1], far=""), word=word(excluded="j")).record
    assert list(lines(record, ())) == [
        "Client j was excluded in round 1: no watch flagged it."
    ]  # where nobody noted the word
    note = Said(1, "exclude", "j", "alice", "maintenance", 0.0, 1).note
    told = fw.RoundRecord(1, (), np.zeros(0), np.zeros(0), excluded=("j",), notes=(note,))
    assert list(lines(told, ())) == ["client j is excluded until it is readmitted (operator alice: maintenance)"]


SCENARIO = {
    "rounds": 10,
    "data": {"clients": 8},
    "model": {"name": "mlp", "hidden": [16]},
    "train": {"momentum": 0.9, "batch_size": 16, "workers": 1},
    "attacks": [{"name": "label_flip", "count": 2}],
}
SPOKEN = [  # before the round that begins with the number: kind, client
    (3, "trust", "0"),
    (4, "exclude", "5"),
    (5, "observe", ""),
    (6, "readmit", "5"),
    (7, "enforce", ""),
    (8, "readmit", "1"),
    (9, "untrust", "0"),
]


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """Runs during which the operator speaks, by preset: the scenario, its records and what was said."""
    guards = {
        "pid_made": {"preset": "pid_made", "options": {"k": 1.0}},
        "auto": {"preset": "auto"},  # only the last measurement of a round is recorded
    }
    found = {}
    for name, guard in guards.items():
        folder = tmp_path_factory.mktemp(name)
        scenario = load_scenario({**SCENARIO, "guard": guard})
        operator = Ledger(folder)
        with operator:
            simulate(scenario, folder, on_round=partial(_speak, operator))
            found[name] = scenario, operator.records(1), said_in(operator, 1)
    return found


def _speak(operator, record):
    for kind, client in (spoken[1:] for spoken in SPOKEN if spoken[0] == record.round + 1):
        say(operator, 1, kind, client, "me", "")


@pytest.mark.parametrize("preset", ["pid_made", "auto"])
def test_a_simulation_obeys_from_the_next_round_on(spoken, preset):
    _, records, said = spoken[preset]
    assert [(s.round, s.kind, s.client) for s in said] == SPOKEN
    for record in records:
        told = word_of(said, record.round)
        assert ("5" in record.excluded) == (record.round in (4, 5))
        assert ("5" in record.client_ids) == (record.round not in (4, 5))
        if told.trusted:
            assert weight(record, "0") > 0
            assert "0" not in record.excluded
        if told.observing:
            assert all(w > 0 for c, w in zip(record.client_ids, record.weights, strict=True) if c != "5")
    noted = [(r.round, n.kind, *n.clients) for r in records for n in r.notes if n.kind.startswith("word_")]
    assert noted == [(t, NOTES[kind], *filter(None, (client,))) for t, kind, client in SPOKEN]


@pytest.mark.parametrize("preset", ["pid_made", "auto"])
def test_a_replay_obeys_the_same_word_in_the_same_rounds(spoken, preset):
    scenario, records, said = spoken[preset]
    again = replay(records, scenario.guard.build(secret=scenario.seed), word_in=partial(word_of, said))
    for a, b in zip(records, again, strict=True):
        assert (a.excluded, a.suspended) == (b.excluded, b.suspended)
        assert a.flagged.tolist() == b.flagged.tolist()
        assert (a.weights > 0).tolist() == (b.weights > 0).tolist()
        for x, y in zip(a.watches, b.watches, strict=True):
            np.testing.assert_array_equal(x.scores, y.scores)
            assert x.threshold == y.threshold
    silent = replay(records, scenario.guard.build(secret=scenario.seed))
    assert any(a.excluded != b.excluded for a, b in zip(records, silent, strict=True))


@pytest.mark.parametrize("size", [1, 2])
def test_groups_without_an_excluded_client(size):
    grouped = Grouped(fw.Warden.preset("auto"), Groups(size=size))
    said = word(excluded="h")
    assert not grouped.asks("h", said)
    record = grouped.step(cohort(1, far=""), word=said).record
    assert record.excluded == ("h",)
    assert weight(record, "h") == 0


def test_the_word_on_clients_of_groups():
    """A client whose groups are always flagged is excluded; the word trusts, readmits and observes."""
    groups = Groups(size=1, colluders=0.0, chance=0.05, likely=0.5)
    flags = {(c,): c == "a" for c in IDS}

    def played(words):
        past = Grouped(fw.Warden(), Groups(size=2)).evidence
        found = []
        for said in words:
            past = groups.step(past.obeying(said), flags, said)
            found.append(past.excluded)
        return found

    assert played([Word()] * 4) == [(), (), ("a",), ("a",)]
    assert played([word("a")] * 4 + [Word()]) == [()] * 4 + [("a",)]
    assert played([Word()] * 3 + [word(readmitted="a")] + [Word()] * 2)[2:] == [("a",), (), (), ("a",)]
    assert played([Word()] * 3 + [word(observing=True)] * 2)[2:] == [("a",), (), ()]


def test_groups_are_not_left_out_while_observing():
    grouped = Grouped(fw.Warden.preset("pid-made", k=1.5, policy="exclude"), Groups(size=2))
    records = [grouped.step(cohort(t, far="a"), word=word(observing=True)).record for t in range(1, 7)]
    assert all((r.weights > 0).all() for r in records)
    assert any(flag for r in grouped.evidence.rounds for _, flag in r)
