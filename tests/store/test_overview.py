"""A run told by client."""

from __future__ import annotations

import numpy as np

import fedwarden as fw
from fedwarden.store.overview import digest, distinct_notes, note_kind, reasons
from fedwarden.store.series import Series

RULE = {"name": "robust_z", "limit": 3.0}


def played(cohort_of, policy):
    """Four rounds in which f lies far out from round 2 on and b sends NaN in round 2."""
    live, records = fw.Warden([fw.Watch("centroid_distance", "raw", RULE, name="far")], policy), []
    for t in range(1, 5):
        ids = [c for c in "abcdef" if live.asks(c)]
        rows = np.random.default_rng(t).normal(size=(len(ids), 4))
        if "f" in ids and t > 1:
            rows[ids.index("f")] += 50.0
        if t == 2:
            rows[ids.index("b")] = np.inf
        records.append(live.step(cohort_of(rows, ids=ids, round=t)).record)
    return records


def test_each_client_has_its_rounds_and_the_reason_it_was_excluded(cohort_of):
    records = played(cohort_of, "quarantine")
    series = Series.of(records)
    clients = {c.client: c for c in digest(series, reasons(records, series.excluded_in))}
    assert list(clients) == list("abcdef")
    assert [clients[c].rounds for c in "abf"] == [4, 3, 2]
    assert list(clients["b"].rejected) == [2]
    out = clients["f"]
    assert (out.excluded_in, out.weight) == (2, 0.0)
    watch = records[1].watches[0]
    assert out.scores == {"far": watch.scores[5]}
    assert out.thresholds == {"far": watch.threshold}
    assert f"far {watch.scores[5]:.3g}, limit {watch.threshold:.3g}" in out.reason
    assert clients["a"].reason == ""
    assert clients["b"].excluded_in is None  # a rejected reply is no verdict


def test_observing_excludes_nobody(cohort_of):
    assert all(c.excluded_in is None for c in digest(Series.of(played(cohort_of, "observe"))))


def test_a_note_is_told_once_with_its_rounds():
    notes = [(1, "2 of 9 at most"), (1, "client 1: odd"), (2, "1 of 8 at most"), (2, "client 2: odd")]
    assert distinct_notes(notes)["1 of 8 at most"] == [2]
    assert distinct_notes(notes, note_kind) == {
        "2 of 9 at most": [1, 2],
        "client 1: odd": [1],
        "client 2: odd": [2],
    }
