"""The verdict on a run's clients: by hand, from arrays and from the ledger, and the same from both."""

from __future__ import annotations

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger
from fedwarden.store.series import Series
from fedwarden.store.verdict import Standing, verdict, verdict_of, why

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


@pytest.fixture
def both(tmp_path):
    with Ledger(tmp_path) as ledger:
        run = ledger.start("hand", "test", {}, {})
        for r in RUN:
            ledger.append(run, r)
        return verdict(Series.of(RUN)), verdict_of(ledger, ledger.run(run))


def test_every_state_by_hand(both):
    told = {s.client: (s.state, s.since, s.flagged) for s in both[0].standings}
    assert told == {
        "a": ("excluded", 2, 4),
        "b": ("stood out", 1, 2),
        "c": ("suspended", 4, 1),
        "d": ("left out", 3, 1),
    }
    assert str(both[0]) == (
        "1 of 4 clients is excluded: a since round 2. 1 more is suspended: c since round 4. 1 more was left out of "
        "single rounds: d in 1 of 4 rounds. 1 more stood out: b in 2 of 4 rounds."
    )


def test_the_list_of_runs_says_the_same(both):
    assert both[1].short == both[0].short == "a excluded; c suspended; d left out; b stood out"


def test_why(both):
    by = {s.client: s for s in both[0].standings}
    assert why(by["b"]) == "it lies far away; flagged by far (2)"
    assert why(by["d"]) == "it is long"
    assert why(Standing("e", "stood out", 2, 1)) == "flagged by an earlier look at the same round"


def test_a_weight_of_zero_without_a_flag_is_no_exclusion():
    told = verdict(Series.of([record(1, out="abc")]))
    assert str(told) == "No client was excluded, and none stood out."
    assert told.short == "nobody"


def test_a_run_without_watches_was_not_judged(tmp_path):
    bare = RoundRecord(1, IDS, np.ones(4), np.ones(4) / 4, flagged=np.zeros(4, bool))
    with Ledger(tmp_path) as ledger:
        run = ledger.start("bare", "test", {}, {})
        assert verdict_of(ledger, ledger.run(run)).short == "not judged"
        ledger.append(run, bare)
        assert verdict_of(ledger, ledger.run(run)).short == "not judged"
    assert str(verdict(Series.of([bare]))) == "No watch was set, so no client was judged."
