"""Numbers that clients report of themselves: who is unlike the others, and a metric that nobody reports."""

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


def test_that_few_report_it_is_told_with_what_most_report_whatever_one_client_makes_up():
    told = {"train/loss": dict.fromkeys(IDS, 1.0), "train/made up": {"a": 1.0}}
    signal = make("signal", "reported", metric="train/los")
    found = signal(cohort(told))
    assert found.values.tolist() == [0.0] * 6
    assert str(found.warning) == (
        "0 of 6 clients report 'train/los'; no client is flagged for it unless most do; "
        "metrics that most report: 'train/loss'"
    )
    assert str(signal(cohort({})).warning).endswith("metrics that most report: none")
    assert signal(cohort({**told, "train/los": {"a": 3.0}})).warning is not None  # one client does not silence it


def test_an_honest_client_is_not_excluded_for_reporting_where_few_do():
    """The attack: with two who report, the honest one lies as far from the middle as the liar."""
    watch = fw.Watch({"name": "reported", "metric": "train/loss"}, "raw", "gesd", start_round=1)
    for told in ({"a": 0.5, "f": 1e300}, {"a": 0.4, "b": 0.5, "c": 0.9}):
        record = fw.Warden([watch], "quarantine").step(cohort({"train/loss": told})).record
        assert record.excluded == ()
        assert any("clients report 'train/loss'" in str(note) for note in record.notes)


def test_the_warning_is_among_the_notes_of_the_round_with_copies_too():
    watch = fw.Watch({"name": "reported", "metric": "train/los"}, "raw", "gesd", start_round=1)
    for rows, share in ((np.eye(6), False), (np.ones((6, 6)) + np.diag([0.0, 0, 1, 2, 3, 4]), True)):
        warden = fw.Warden([watch], "exclude", share_copies=share)
        cohort = fw.Cohort(1, IDS, fw.Updates.of(rows), np.ones(6))
        notes = [str(note) for note in warden.step(cohort).record.notes]
        assert any("report 'train/los'" in note for note in notes), notes
