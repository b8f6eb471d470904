"""A cohort is made of plain values, and stays one when a part of it is replaced."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

import fedwarden as fw


@pytest.fixture
def cohort() -> fw.Cohort:
    return fw.Cohort(
        round=np.int64(3), client_ids=["a", 7], updates=fw.Updates.of(np.ones((2, 4))), num_examples=[30, 10]
    )


def test_plain_values_become_arrays(cohort):
    assert (cohort.round, cohort.client_ids) == (3, ("a", "7"))
    assert cohort.num_examples.dtype == np.float64
    assert cohort.trusted.tolist() == [True, True]
    assert cohort.claimed.tolist() == [30.0, 10.0]
    assert cohort.shares.tolist() == [0.75, 0.25]


def test_a_part_is_replaced(cohort):
    other = replace(cohort, num_examples=[10, 10], trusted=[False, True])
    assert isinstance(other, fw.Cohort)
    assert other.shares.tolist() == [0.0, 1.0]
    assert other.claimed.tolist() == [30.0, 10.0]
    assert cohort.shares.tolist() == [0.75, 0.25]


@pytest.mark.parametrize(("trusted", "claimed"), [([True] * 3, ()), ((), [1.0])])
def test_one_entry_per_client(cohort, trusted, claimed):
    with pytest.raises(ValueError, match="one id, row and count per client"):
        fw.Cohort(1, cohort.client_ids, cohort.updates, [1, 1], None, trusted, claimed)


def test_a_watch_travels_to_another_process_and_is_replaced():
    watch = fw.Watch("centroid_distance", {"name": "pid", "ki": 0.1}, fw.GESD(0.2))
    assert pickle.loads(pickle.dumps(watch)) == watch
    other = replace(watch, rule="k_sigma", name="far")
    assert isinstance(other, fw.Watch)
    assert (other.history, other.rule, other.name) == (fw.PID(ki=0.1), fw.KSigma(), "far")
    with pytest.raises(FrozenInstanceError):
        watch.name = "near"
