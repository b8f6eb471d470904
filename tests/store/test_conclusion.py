"""How a run ended, from records made by hand."""

import re

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.conclusion import conclusion, mostly_out
from fedwarden.store.round import RoundStory
from fedwarden.store.story import Story

SAME = Note.of("copies_share", "b", "c", leading=0)


def record(t, weights, flagged="", excluded="", suspended="", notes=(), rejected=(), examples=None, **metrics):
    """One round of clients given as {name: weight}."""
    ids = tuple(weights)
    flags = np.array([c in flagged for c in ids], dtype=bool)
    score = flags * 5.0
    watch = WatchRecord("far", score, score, 2.0, flags, None, {}, "it lies far away")
    refused = tuple(Rejection(c, Note.of("sent_nothing")) for c in rejected)
    counts = np.array([(examples or {}).get(c, 10.0) for c in ids])
    return RoundRecord(
        t, ids, counts, np.array([*weights.values()], dtype=np.float64), (watch,), flags, tuple(excluded), refused,
        tuple(notes), metrics, tuple(suspended),
    )  # fmt: skip


def states(records):
    return {name: client.state for name, client in Story.of(records).clients.items()}


def test_a_client_is_in_the_model_by_its_own_weight_or_by_that_of_an_identical_update():
    assert RoundStory(record(1, {"a": 0.5, "b": 0.5, "c": 0.0})).inside == {"a", "b"}
    assert RoundStory(record(1, {"a": 0.5, "b": 0.5, "c": 0.0}, notes=[SAME])).inside == {"a", "b", "c"}
    assert RoundStory(record(1, {"a": 1.0, "b": 0.0, "c": 0.0}, notes=[SAME])).inside == {"a"}


def test_out_is_fewer_than_half_of_the_last_ten_rounds_that_asked():
    """Client b is in the first 20 rounds and out of the last: of the last 10 it is in 4, 5 or 6."""
    for inside, out in ((4, True), (5, False), (6, False)):
        rounds = [record(t, {"a": 1.0, "b": float(t <= 20 + inside)}) for t in range(1, 31)]
        assert mostly_out(rounds) == ({"b"} if out else set())


def test_rounds_that_do_not_ask_a_client_say_nothing_of_it_unless_it_is_excluded():
    rounds = [record(1, {"a": 1.0, "b": 1.0}), record(2, {"a": 1.0, "b": 0.0}, flagged="b", excluded="b")]
    rounds += [record(t, {"a": 1.0}, excluded="b") for t in (3, 4)]
    assert mostly_out(rounds) == {"b"}  # in 1 of 4
    assert mostly_out([rounds[0], *[record(t, {"a": 1.0}) for t in (2, 3, 4)]]) == set()  # it was in whenever asked
    waiting = [record(t, {"a": 1.0}, excluded="b", suspended="b") for t in (2, 3, 4)]
    assert mostly_out([rounds[0], *waiting]) == set()


def test_a_rejected_reply_is_not_in_the_model():
    assert mostly_out([record(t, {"a": 1.0}, rejected="b") for t in (1, 2)]) == {"b"}


LEFT_OUT, ON_TRIAL = (Note.of(kind, "b", watches=("far",), words="it is long") for kind in ("left_out", "on_trial"))
FAR = r"it lies far away \(far 5, limit 2"


@pytest.mark.parametrize(
    ("weight", "what", "state", "reason"),
    [
        (0.3, {}, "in the model", "$"),
        (0.1, {}, "down-weighted", r"its weight is 0\.33 times that of the median client\.$"),
        (0.0, {"flagged": "b"}, "skipped", FAR),
        (0.0, {}, "skipped", r"the aggregator left its update out\.$"),
        (0.0, {"notes": [LEFT_OUT]}, "skipped", r"it is long\.$"),
        (0.0, {"flagged": "b", "excluded": "b", "suspended": "b"}, "suspended", FAR),
        (0.0, {"flagged": "b", "excluded": "b"}, "excluded", FAR),
        (0.0, {"rejected": "b"}, "rejected", r"sent nothing\.$"),
        (0.3, {"notes": [ON_TRIAL]}, "on trial", r"it is long\.$"),
        (0.3, {"notes": [ON_TRIAL], "flagged": "b"}, "on trial", FAR),
        (0.0, {"notes": [ON_TRIAL], "flagged": "b"}, "on trial", FAR),  # a copy has no weight of its own
        (0.0, {"notes": [LEFT_OUT], "flagged": "b"}, "skipped", FAR),
    ],
)
def test_every_state(weight, what, state, reason):
    before = [record(t, dict.fromkeys("abcd", 0.25)) for t in (1, 2)]
    story = Story.of([*before, record(3, {"a": 0.3, "b": weight, "c": 0.3, "d": 0.3}, **what)])
    assert (story.clients["b"].state, story.clients["b"].weight) == (state, weight)
    told = str(story.reason("b"))
    assert re.match("" if reason == "$" else f"Client b was {state} in round 3: {reason}", told)
    assert bool(told) == (reason != "$")
    assert conclusion(story, ())["clients"]["b"]["reason"] == told


def test_a_client_with_little_data_is_not_down_weighted_nor_is_one_with_much_among_equals():
    by_examples = record(1, {"a": 0.45, "b": 0.1, "c": 0.45}, examples={"a": 90.0, "b": 20.0, "c": 90.0})
    equal = record(1, {"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}, examples={"a": 1000.0})
    less = record(1, {"a": 0.46, "b": 0.04, "c": 0.5}, examples={"a": 90.0, "b": 20.0, "c": 98.0})
    assert set(states([by_examples]).values()) == set(states([equal]).values()) == {"in the model"}
    assert states([less]) == {"a": "in the model", "b": "down-weighted", "c": "in the model"}


def test_the_state_is_that_of_the_last_round_that_a_client_took_part_in():
    story = Story.of(
        [record(1, {"a": 0.5, "b": 0.5}), record(2, {"a": 1.0, "c": 0.0}, flagged="c"), record(3, {"a": 1.0})]
    )
    assert {c: (e.state, e.weight) for c, e in story.clients.items()} == {
        "a": ("in the model", 1.0), "b": ("in the model", 0.5), "c": ("skipped", 0.0),
    }  # fmt: skip


def test_clients_that_share_a_vote_are_in_the_model():
    story = Story.of([record(1, {"a": 0.5, "b": 0.5, "c": 0.0}, notes=[SAME])])
    assert story.clients["c"].state == "in the model"
    for one, other in ("bc", "cb"):
        why = f"it shares one vote with {other}, since their updates are identical"
        assert str(story.reason(one)) == f"Client {one} was in the model in round 1: {why}."
    assert str(story.reason("a")) == ""


def test_identical_updates_are_listed_once_and_without_parts_of_larger_groups():
    records = [
        record(1, {"b": 1.0, "c": 0.0}, notes=[SAME]),
        record(2, {"b": 1.0}, notes=[Note.of("copies_as_one", "d", "10", "9", leading=0), SAME]),
        record(3, {"b": 1.0}, notes=[Note.of("copies_share", "9", "10", leading=0)]),
    ]
    assert conclusion(Story.of(records), ())["acting_as_one"] == [["b", "c"], ["9", "10", "d"]]


def test_a_run_in_the_terms_of_the_command_line():
    rounds = [
        record(t, {"a": 0.5, "b": 0.5, "c": 0.0, "d": 0.0}, flagged="cd", accuracy=t / 10, attack_success=0.1 * t)
        for t in range(1, 8)
    ]
    told = conclusion(Story.of(rounds), {"b", "c"})
    assert told["accuracy"] == pytest.approx(0.7)
    assert told["late_accuracy"] == pytest.approx(0.5)  # of .3, .4, .5, .6, .7
    assert told["attack_success"] == pytest.approx(0.7)
    assert (told["attackers"], told["caught"], told["honest_out"]) == (["b", "c"], ["c"], ["d"])
    assert told["clients"]["a"] == {"state": "in the model", "reason": "", "weight": 0.5}
    assert told["clients"]["d"]["state"] == "skipped"


def test_a_run_without_rounds():
    told = conclusion(Story.of([]), {"a"})
    assert told["clients"] == {}
    assert [told[k] for k in ("accuracy", "late_accuracy", "attack_success")] == [None] * 3
    assert (told["attackers"], told["caught"], told["honest_out"], told["acting_as_one"]) == (["a"], [], [], [])
