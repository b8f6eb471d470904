"""A run told by client."""

import numpy as np

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.store import record as room
from fedwarden.store.ledger import Ledger
from fedwarden.store.story import Story, distinct_notes, rounds_by_note

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
    story = Story.of(records)
    clients, gone = story.clients, story.series.excluded_in
    assert list(clients) == list("abcdef")
    assert [clients[c].rounds for c in "abf"] == [4, 3, 2]
    assert list(clients["b"].rejected) == [2]
    out = clients["f"]
    assert (gone, out.weight, out.state) == ({"f": 2}, 0.0, "excluded")
    watch = records[1].watches[0]
    assert out.scores == {"far": watch.scores[5]}
    assert out.thresholds == {"far": watch.threshold}
    assert f"far {watch.scores[5]:.4g}, limit {watch.threshold:.4g}" in str(story.reason("f"))
    assert str(story.reason("a")) == str(story.reason("b")) == ""  # a rejected reply is no verdict


def test_a_list_of_runs_reads_the_last_rounds_alone(cohort_of, tmp_path, monkeypatch):
    first, *rest = played(cohort_of, "quarantine")
    monkeypatch.setattr(room, "LAST", 2)
    with Ledger(tmp_path) as ledger:
        run = ledger.start("long", "flower", {}, {})
        for record in (first, *rest):
            ledger.append(run, record)
        ledger.db.execute("UPDATE round SET metrics = 'unreadable' WHERE round < 3")
        found = room.brief(ledger, ledger.run(run))
    assert (found["rounds"], found["excluded"], found["verdict"]) == (4, ["f"], "f excluded")


def test_observing_excludes_nobody(cohort_of):
    assert not Story.of(played(cohort_of, "observe")).series.excluded_in


def test_a_note_is_told_once_with_its_rounds():
    one, two = (Note.of("masking", most=n) for n in (2, 1))
    mine, other = (Note.of("buffers_far", client, share=0.5) for client in ("1", "2"))
    near, far = (Note.of("watch", watch=name, cause=one) for name in ("near", "far"))
    notes = [(1, one), (1, mine), (1, near), (2, two), (2, other), (2, far), (3, near)]
    assert distinct_notes(notes) == {one: [1, 2], mine: [1], near: [1, 3], other: [2], far: [2]}
    assert rounds_by_note(notes)[two] == [2]
