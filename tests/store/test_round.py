"""Verdicts in words."""

from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.round import Reason, RoundStory

IDS = ("ann", "bob", "cy", "dee", "eve")
CALM = np.array([1.0, 1.1, 0.9, 1.0, 1.1])


def watch(name, signal, flagged=(), parts=None, words=None):
    flags = np.isin(np.arange(len(signal)), flagged)
    return WatchRecord(name, signal, signal, 9.0, flags, None, parts or {}, words or f"its {name} is odd")


def explain(record):
    told = RoundStory(record)
    return {client: str(told.reason(client)) for client in record.client_ids if client in told.flagged}


def record(*watches, flagged=None):
    found = np.any([w.flagged for w in watches], axis=0) if flagged is None else np.isin(np.arange(5), flagged)
    return RoundRecord(1, IDS, np.ones(5), np.ones(5), watches, found)


def test_nobody_flagged_nothing_said():
    assert explain(record(watch("distance", CALM))) == {}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (9.0, "8 MADs above"),  # the median is 1, every other deviation 1: (9 - 1) / 1
        (-6.0, "7 MADs below"),
        (1e9, "999 MADs above"),
    ],
)
def test_how_far_out_in_median_deviations(value, words):
    signal = np.array([0.0, 1.0, 2.0, 1.0, value, 0.0, 2.0])
    told = explain(
        RoundRecord(
            1, tuple("abcdefg"), np.ones(7), np.ones(7), (watch("distance", signal, [4]),), np.arange(7) == 4
        )
    )  # fmt: skip
    why = f"its distance is odd (distance {value:.4g}, limit 9, {words} the median)"
    assert told == {"e": f"Client e was flagged in round 1: {why}."}


def test_evidence_of_many_rounds_is_told_as_such():
    """What carries the verdict need not stand out in this round."""
    told = explain(record(watch("distance", CALM, [1])))
    assert told == {
        "bob": "Client bob was flagged in round 1: its distance is odd (distance 1.1, limit 9, gathered over rounds)."
    }


def test_several_clients_and_several_watches():
    far, farther = np.array([1.0, 1.1, 0.9, 1.0, 9.0]), np.array([1.0, 9.0, 0.9, 1.0, 9.0])
    told = explain(record(watch("distance", far, [4]), watch("angle", farther, [1, 4]), watch("length", CALM)))
    assert list(told) == ["bob", "eve"]
    assert told["bob"].startswith("Client bob was flagged in round 1: its angle is odd (angle")
    assert "distance" not in told["bob"]
    assert [w in told["eve"] for w in ("distance is odd", "angle is odd")] == [True, True]
    assert "length" not in told["eve"]


def test_the_part_that_stands_out_most_is_named():
    """A part's height is among the clients, not among the parts: layer 2 is larger, layer 1 moved."""
    one, two = np.array([0.1, 0.11, 0.09, 0.1, 0.5]), np.array([50.0, 55.0, 45.0, 50.0, 60.0])
    told = explain(record(watch("divergence", one, [4], {"layer 1": one, "layer 2": two})))
    assert told["eve"].endswith("most in layer 1.")
    told = explain(record(watch("divergence", one, [4], {"layer 2": two, "layer 1": one})))
    assert told["eve"].endswith("most in layer 1.")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_a_number_is_told_as_such(bad):
    signal = np.array([1.0, 1.1, 0.9, 1.0, bad])
    told = explain(record(watch("divergence", signal, [4], {"layer 1": signal}), watch("distance", CALM)))
    assert told == {"eve": "Client eve was flagged in round 1: its divergence is not a number."}


def test_clients_without_a_value_do_not_count():
    """Rejected clients have NaN: the median of 1, 1 and 9 is not moved by them."""
    signal = np.array([1.0, np.nan, 1.0, np.nan, 9.0])
    assert "999 MADs above" in explain(record(watch("distance", signal, [4])))["eve"]


def test_a_doubt_that_no_limit_was_exceeded_for_is_measured_harm():
    harm = np.array([0.0, 0.1, 0.2, 0.1, 3.0])
    doubt = Note.of("on_trial", "eve", watches=("harm",), words="its harm is odd", harmful=True)
    told = RoundStory(replace(record(watch("harm", harm), watch("distance", CALM), flagged=[4]), notes=(doubt,)))
    words = "its harm is odd (harm 3, proven above 9, gathered over rounds)"
    assert str(told.reason("eve")) == f"Client eve was on trial in round 1: {words}."


def test_flagged_by_no_watch():
    assert explain(record(watch("distance", CALM), flagged=[2])) == {"cy": ""}
    out = replace(record(watch("distance", CALM), flagged=[2]), excluded=("cy",))
    assert explain(out) == {"cy": "Client cy was excluded in round 1: no watch flagged it."}


def test_a_member_of_groups_is_excluded_for_the_groups_and_not_for_what_its_last_group_sent():
    far = np.array([1.0, 1.1, 0.9, 1.0, 9.0])
    proven = replace(record(watch("distance", far, [4])), excluded=("eve",), notes=(Note.of("groups_prove", "eve"),))
    told = str(RoundStory(proven).reason("eve"))
    assert told.startswith("Client eve was excluded in round 1: no likely coalition of others explains")


def test_a_second_reply_that_is_refused_does_not_make_the_first_one_rejected():
    twice = replace(record(watch("distance", CALM)), rejected=(Rejection("bob", Note.of("answered_twice")),))
    assert RoundStory(twice).states["bob"] == "in the model"
    weights = np.array([1.0, 1.0, 1.0, 1.0, 0.0])  # a cohort that has both replies
    both = replace(twice, client_ids=("ann", "bob", "cy", "dee", "bob"), weights=weights)
    assert RoundStory(both).states["bob"] == "in the model"


def test_a_reason_is_data():
    far = np.array([1.0, 1.1, 0.9, 1.0, 9.0])  # the median is 1, the median deviation 0.1
    reason = RoundStory(record(watch("distance", far, [4], {"layer 1": far}), watch("angle", CALM))).reason("eve")
    (flag,) = reason.flags
    assert (reason.client, reason.state, reason.round) == ("eve", "flagged", 1)
    assert (flag.watch, flag.score, flag.limit, flag.part) == ("distance", 9.0, 9.0, "layer 1")
    assert flag.height == pytest.approx(80.0)
    assert str(Reason()) == ""


def test_a_doubt_has_the_reasons_of_its_own_watches_alone():
    """Weights that a client alone moves are left out; it is not in doubt for them."""
    far = np.array([1.0, 1.1, 0.9, 1.0, 9.0])
    doubt = Note.of("left_out", "eve", watches=("distance",), words="its distance is odd", lone=True)
    told = RoundStory(replace(record(watch("distance", far, [4]), watch("lone", far, [4])), notes=(doubt,)))
    assert [flag.watch for flag in told.reason("eve").flags] == ["distance"]
    assert "; weights that it alone moves lead to one class" in str(told.reason("eve"))


def test_in_a_round_without_a_model_no_aggregator_chose():
    still = replace(record(watch("distance", CALM)), weights=np.zeros(5))
    assert str(RoundStory(still).reason("ann")) == (
        "Client ann was skipped in round 1: no update is in the model of this round."
    )
