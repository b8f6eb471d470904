"""Shared by all tests: repeatable hypothesis runs, and a cohort from plain rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import fedwarden as fw

settings.register_profile(
    "quick",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("quick")


@pytest.fixture(scope="session")
def cohort_of():
    """A cohort from rows; ids are a, b, c, ... and every client has ten examples unless told."""

    def build(rows, ids=None, counts=None, round=1, trusted=(), params=None):
        updates = fw.Updates.of(rows)
        ids = tuple(ids or (chr(ord("a") + i) for i in range(len(updates))))
        counts = np.full(len(updates), 10.0) if counts is None else np.asarray(counts, dtype=float)
        return fw.Cohort(round, ids, updates, counts, params, np.asarray(trusted, bool))

    return build
