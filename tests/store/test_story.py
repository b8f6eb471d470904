"""The story of a run's clients: by hand, from arrays and from the ledger, and the same from both."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger
from fedwarden.store.record import brief
from fedwarden.store.round import RoundStory
from fedwarden.store.story import Story

IDS = tuple("abcd")


def record(t, flagged="", out="", excluded="", suspended="", notes=()):
    flags = np.array([c in flagged for c in IDS])
    weights = np.array([0.0 if c in out or c in excluded else 0.25 for c in IDS])
    score = flags * 5.0
    watch = WatchRecord("far", score, score, 2.0, flags, None, {}, "it lies far away")
    return RoundRecord(t, IDS, np.ones(4), weights, (watch,), flags, tuple(excluded), (), notes, {}, tuple(suspended))


RUN = [
    record(1, flagged="ab", out="a"),
    record(2, flagged="abc", excluded="ac", suspended="ac"),
    record(3, flagged="a", excluded="a", notes=(Note.of("left_out", "d", words="it is long"),)),
    record(4, flagged="a", excluded="ac", suspended="c"),
]
LONG = {"watches": ("far",), "words": "it is long"}
TURNS = [
    record(1, flagged="a", notes=(Note.of("on_trial", "a", **LONG),)),
    record(2, flagged="ab", out="ab", notes=(Note.of("left_out", "a", **LONG), Note.of("on_trial", "b", **LONG))),
    record(3, flagged="abc", out="bc", notes=(Note.of("on_trial", "a", **LONG), Note.of("left_out", "b", **LONG))),
    record(4, flagged="d"),
]


def listed(folder, rounds):
    """What the list of runs says of these rounds."""
    with Ledger(folder) as ledger:
        run = ledger.start("hand", "test", {}, {})
        for r in rounds:
            ledger.append(run, r)
        return brief(ledger, ledger.run(run))["verdict"]


def test_every_state_by_hand(tmp_path):
    story = Story.of(RUN)
    told = {s.client: (s.verdict, s.since, s.flagged) for s in story.standings.values()}
    assert told == {
        "a": ("excluded", 2, 4),
        "b": ("flagged", 1, 2),
        "c": ("suspended", 4, 1),
        "d": ("skipped", 3, 1),
    }
    assert listed(tmp_path, RUN) == story.short == "a excluded; c suspended; d skipped; b flagged"
    assert str(story) == (
        "1 of 4 clients is excluded: a since round 2. 1 more is suspended: c since round 4. 1 more was skipped: "
        "d in 1 of 4 rounds. 1 more was flagged: b in 2 of 4 rounds."
    )


def test_clients_in_doubt_are_on_trial_or_skipped_and_each_round_counts_once(tmp_path):
    """Client b is on trial in round 2 without a weight of its own, as a copy is; c is flagged and absent."""
    told = Story.of(TURNS)
    assert {s.client: (s.verdict, s.tried, s.skipped, str(s)) for s in told.standings.values()} == {
        "a": ("on trial", 2, 1, "on trial in 2 rounds, skipped in 1"),
        "b": ("skipped", 1, 1, "on trial in 1 round, skipped in 1"),
        "c": ("skipped", 0, 1, "skipped in 1 round"),
        "d": ("flagged", 0, 0, "flagged in 1 round"),
    }
    assert str(told) == (
        "No client was excluded. 2 of 4 clients were in doubt: a on trial in 2 and skipped in 1 of 4 rounds; b on "
        "trial in 1 and skipped in 1 of 4 rounds. 1 more was skipped: c in 1 of 4 rounds. 1 more was flagged: d in 1 "
        "of 4 rounds."
    )
    assert told.gone == set("abc")
    assert listed(tmp_path, TURNS) == told.short == "b and c skipped; a on trial; d flagged"


def test_weights_that_were_cut_are_told():
    cut = [record(t, notes=(Note.of("lone_weights", *clients),)) for t, clients in enumerate(("ab", "a"), 1)]
    assert str(Story.of(cut)) == (
        "No client was excluded, and none was flagged. Weights that a client alone moved were left out: "
        "a in 2 of 2 rounds; b in 1 of 2 rounds."
    )


def test_a_client_in_doubt_has_the_reason_of_its_last_round_of_doubt():
    told = str(Story.of(TURNS).reason("a"))
    assert re.match(r"Client a was on trial in round 3: it lies far away \(far 5, limit 2, [^()]*\)\.$", told)
    states = [RoundStory(r).states["a"] for r in TURNS]
    assert states == ["on trial", "skipped", "on trial", "in the model"]


def test_why():
    told = {c: str(Story.of(RUN).reason(c)) for c in IDS}
    assert told["a"].startswith("Client a was suspended in round 2: it lies far away (far 5, limit 2, ")
    assert told["b"].startswith("Client b was flagged in round 2: it lies far away")
    assert told["c"] == "Client c was suspended in round 4: no watch flagged it."
    assert told["d"] == "Client d was skipped in round 3: it is long."


@pytest.mark.parametrize(
    ("first", "since", "words"),
    [
        ("suspended", 3, "Client a was excluded in round 3: operator alice: enough."),
        ("", 2, "Client a was excluded in round 2: it lies far away (far 5, limit 2, 999 MADs above the median)."),
    ],
)
def test_a_client_that_was_suspended_is_excluded_since_the_operator_said_so(first, since, words):
    """One that was excluded before stays excluded for the first reason."""
    notes = (Note.of("suspended", "a"),) if first else ()
    said = Note.of("word_excluded", "a", by="operator alice", reason="enough")
    out = record(2, flagged="a", excluded="a", suspended="a" * bool(first), notes=notes)
    story = Story.of([record(1), out, record(3, excluded="a", notes=(said,))])
    assert str(story.standings["a"]) == f"excluded since round {since}"
    assert str(story.reason("a")) == words


def test_clients_that_act_as_one_come_first_in_the_list_of_runs_too(tmp_path):
    same = Note.of("copies_share", *"abc", leading=0)
    rounds = [record(1, notes=(same,)), record(2, flagged="d", notes=(same,))]
    story = Story.of(rounds)
    assert story.sentences[0] == (
        "Clients a, b and c act as one: they sent identical updates in 2 of 2 rounds and share one vote."
    )
    assert listed(tmp_path, rounds) == story.short == "3 act as one: a, b and c; d flagged"


def test_a_weight_of_zero_without_a_flag_is_no_exclusion_but_the_aggregators_choice():
    told = Story.of([record(1, out="abc"), record(2, out="ad", flagged="d"), record(3, out="abcd")])
    assert told.left_out == {"a": 2, "b": 1, "c": 1}  # nothing was combined in round 3
    assert str(told) == (
        "No client was excluded. 1 of 4 clients was skipped: d in 1 of 3 rounds. "
        "The aggregator left out clients that were not flagged: a in 2 of 3 rounds; b and c in 1 of 3 rounds."
    )


def test_identical_updates_that_each_count_are_named_too():
    story = Story.of([record(1, notes=(Note.of("copies_apart", *"ab"),))])
    assert story.sentences[0] == (
        "Clients a and b act as one: they sent identical updates in 1 of 1 round and each count in full."
    )
    assert story.clients["a"].state == "in the model"


def test_a_client_that_answers_twice_is_skipped_as_any_other():
    told = Story.of([replace(r, rejected=(Rejection("a", Note.of("answered_twice")),)) for r in RUN[:1]])
    assert (str(told.standings["a"]), told.clients["a"].rounds) == ("skipped in 1 round", 1)


def test_a_run_without_watches_was_not_judged(tmp_path):
    bare = RoundRecord(1, IDS, np.ones(4), np.ones(4) / 4, flagged=np.zeros(4, bool))
    assert listed(tmp_path, []) == listed(tmp_path, [bare]) == "not judged"
    assert str(Story.of([bare])) == "No watch was set, so no client was judged."
