"""A run in sentences."""

from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Observation
from fedwarden.report.summary import tell
from fedwarden.sim.scenario import load_scenario
from fedwarden.store.ledger import Run
from fedwarden.store.record import RunRecord
from fedwarden.store.story import Story
from fedwarden.store.word import Said

RUN = Run(3, "ward", 0.0, "done", "flower", {"rounds": 6}, {}, {}, 6)


@pytest.fixture
def record(played):
    return RunRecord(RUN, Story.of(played))


def test_what_happened_to_whom_and_why(record):
    told = tell(record)
    assert told[0] == "Run 3 (ward), begun on 1 January 1970, is complete: 6 of 6 rounds with 8 clients."
    assert told[1] == "The model's clean accuracy is 60.0 % after round 6."
    assert told[2] == "1 of 8 clients is excluded: h since round 2."
    assert told[3] == str(record.story.reason("h"))
    assert told[3].startswith("Client h was excluded in round 2: ")
    assert told[4].startswith("1 reply of 1 client was rejected: ")
    assert not any("simulation" in sentence for sentence in told)


def test_a_client_in_doubt_is_different_and_harm_is_not_shown(played):
    doubt = Note.of("left_out", "g", watches=("far",), words="it lies far out")
    told = tell(RunRecord(RUN, Story.of([replace(record, notes=(doubt,)) for record in played])))
    said = "Client g is different, harm not shown. If you know why it differs, give the guard of the next run trusted ="
    assert any(said in sentence for sentence in told)


def test_the_best_round_is_told_where_it_is_not_the_last(record):
    metrics = {"accuracy": np.array([0.1, 0.5, 0.9, 0.8, 0.7, np.nan])}
    told = tell(with_series(record, replace(record.series, metrics=metrics)))
    assert told[1] == "The model's clean accuracy is 70.0 % after round 5; its best was 90.0 % in round 3."


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("running", "is running: 6 of 9 rounds so far"),
        ("failed", "failed after 6 of 9 rounds"),
        ("interrupted", "has been interrupted since 1970-01-01 00:00 UTC, after 6 of 9 rounds"),
    ],
)
def test_every_state(record, state, words):
    assert words in tell(replace(record, run=replace(RUN, state=state, config={"rounds": 9})))[0]


def with_series(record, series):
    return replace(record, story=replace(record.story, series=series))


TRUTH = "This was a simulation, so the truth is known. 2 attackers: none flagged. 6 honest clients: 1 excluded."


def test_a_simulation_knows_the_truth(played):
    config = load_scenario(
        {"data": {"clients": 8}, "attacks": [{"name": "label_flip", "clients": [0, 1]}]}
    ).model_dump()
    ids = dict(zip("abcdefgh", map(str, range(8)), strict=True))  # the last one is excluded: honest
    named = [
        replace(
            r,
            client_ids=tuple(ids[c] for c in r.client_ids),
            excluded=tuple(ids[c] for c in r.excluded),
            rejected=tuple(replace(x, client_id=ids[x.client_id]) for x in r.rejected),
        )
        for r in played
    ]
    assert TRUTH in tell(RunRecord(replace(RUN, engine="in-process", config=config), Story.of(named)))


def test_who_is_silent_and_since_when(record):
    late = Note.of("no_answer")
    gone = replace(record.series, rejected=((5, "g", late), (6, "g", late)))
    gone.weights[4:, 6] = np.nan
    assert "Asked but silent: g since round 5." in tell(with_series(record, gone))


def test_what_the_operator_said_is_told(record):
    entries = (Said(1, "trust", "a", "alice", "rare disease", 1.0, 2), Said(2, "observe", "", "bob", "", 2.0))
    told = tell(replace(record, said=entries))
    assert "From round 2 on: client a is trusted (operator alice: rare disease)." in told
    assert "From the next round on: watches flag clients and leave none out (operator bob: no reason given)." in told


def test_a_failed_run_says_why(record):
    failed = replace(RUN, state="failed", summary={"error": "out of memory"})
    assert tell(replace(record, run=failed))[0].endswith("failed after 6 of 6 rounds (out of memory) with 8 clients.")
    again = replace(failed, state="running")  # the error is that of an earlier end
    assert "memory" not in tell(replace(record, run=again))[0]


def test_nothing_recorded_and_nothing_watched(record):
    empty = tell(RunRecord(replace(RUN, state="running", config={}), Story.of([])))
    assert empty == ["Run 3 (ward), begun on 1 January 1970, is running: 0 rounds so far.",
                     "No round has been recorded."]  # fmt: skip
    bare = replace(record.series, watches={}, excluded=np.zeros_like(record.series.excluded), metrics={}, rejected=())
    bare = replace(bare, weights=np.full_like(bare.weights, 0.125), flagged=np.zeros_like(bare.flagged))
    assert tell(replace(record, story=replace(record.story, series=bare, watches=())))[1:] == [
        "No accuracy was recorded.",
        "No watch was set, so no client was judged.",
    ]


def test_an_audit_is_told(record):
    calm = [Observation(t, "weights", "cosine", "", 1.0, 1.0, 0.1, 0.9, False) for t in (2, 3)]
    alarm = Observation(4, "outputs", "mean_logits", "", 1.0, 0.1, 9.0, 1e-4, True, {"3": 5.0, "7": -4.0, "1": 0.1})
    assert "in 2 rounds, in 1 way; nothing departed" in tell(replace(record, observations={"": calm}))[-1]
    told = tell(replace(record, observations={"eve": [*calm, alarm]}))[-1]
    assert told == (
        "Auditor eve looked at the shared model in 3 rounds, in 2 ways; 1 alarm, the first in round 4: outputs, mean "
        "logits (by chance with probability 0.0001); the answers for class 3 and 7 moved."
    )


def test_an_audit_without_rounds_is_told_as_such():
    seen = [Observation(2, "weights", "cosine", "", 1.0, 1.0, 0.1, 0.9, False)]
    told = tell(RunRecord(RUN, Story.of([]), {"": tuple(seen)}))
    assert told[0].endswith("holds what auditors observed, and no rounds.")
    assert told[1].startswith("An auditor looked at the shared model in 1 round, in 1 way;")
    assert len(told) == 2


def test_warnings_are_told_once(record):
    notes = tuple((t, Note.of("no_usable_reply", rejected=t)) for t in (1, 2, 3))
    told = tell(with_series(record, replace(record.series, notes=notes)))
    assert told[-1] == "Warning in 3 rounds from 1 to 3: no usable reply (1 rejected); the model is kept."


def test_who_helps_is_told_where_harm_was_measured(record, weighed):
    assert not any("server's samples" in sentence for sentence in tell(record))
    told = tell(replace(record, story=Story.of(weighed)))
    assert "On the server's samples, 1 of 8 clients measurably helped the model; g harmed it." in told
    calm = [replace(r, watches=tuple(replace(w, signal=0 * w.signal) for w in r.watches)) for r in weighed]
    told = tell(replace(record, story=Story.of(calm)))
    assert "On the server's samples, 0 of 8 clients measurably helped the model; none harmed it." in told
