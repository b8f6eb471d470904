"""Numbers that clients report of themselves: who is unlike the others, and a metric that nobody reports."""

from __future__ import annotations

import numpy as np

import fedwarden as fw
from fedwarden.core.registry import make

IDS = tuple("abcdef")


def cohort(reported):
    return fw.Cohort(1, IDS, fw.Updates.of(np.eye(6)), np.ones(6), reported=reported)


def test_a_number_unlike_the_others_stands_out():
    told = {"train/loss": dict(zip(IDS, [1.0, 1.1, 0.9, 1.0, 9.0, float("nan")], strict=True))}
    found = make("signal", "reported", metric="train/loss")(cohort(told))
    assert found.values.round(6).tolist() == [0.0, 0.1, 0.1, 0.0, 8.0, 0.0]
    assert found.warning is None


def test_that_nobody_reports_it_is_told_with_what_most_report_whatever_one_client_makes_up():
    told = {"train/loss": dict.fromkeys(IDS, 1.0), "train/made up": {"a": 1.0}}
    signal = make("signal", "reported", metric="train/los")
    found = signal(cohort(told))
    assert found.values.tolist() == [0.0] * 6
    assert str(found.warning) == ("nobody reports 'train/los', so nobody can stand out by it; most report 'train/loss'")
    assert str(signal(cohort({})).warning).endswith("most report nothing")
    assert signal(cohort({"train/los": {"a": float("inf")}})).warning is not None


def test_the_warning_is_among_the_notes_of_the_round_with_copies_too():
    watch = fw.Watch({"name": "reported", "metric": "train/los"}, "raw", "gesd", start_round=1)
    for rows, share in ((np.eye(6), False), (np.ones((6, 6)) + np.diag([0.0, 0, 1, 2, 3, 4]), True)):
        warden = fw.Warden([watch], "exclude", share_copies=share)
        cohort = fw.Cohort(1, IDS, fw.Updates.of(rows), np.ones(6))
        notes = [str(note) for note in warden.step(cohort).record.notes]
        assert any("nobody reports 'train/los'" in note for note in notes), notes
