"""The recorder: one run's row, lock, checkpoints, sinks and end, whichever engine plays it."""

import numpy as np
import pytest
import torch

from fedwarden.core.errors import FedwardenError
from fedwarden.core.types import RoundRecord
from fedwarden.store.checkpoint import CheckpointError, checkpoint_path, saved
from fedwarden.store.claim import claim
from fedwarden.store.ledger import Ledger
from fedwarden.store.recorder import Recorder, versions

CONFIG = {"rounds": 5}


class Heard:
    """Sinks that remember what reached them, and complain in one round."""

    def __init__(self):
        self.rounds, self.ended = [], []

    def open(self, ledger, run):
        self.ledger, self.run = ledger, run

    def send(self):
        self.rounds.append(self.ledger.last_round(self.run))

    def close(self, state):
        self.ended.append(state)


def record(t):
    one = np.ones(2)
    return RoundRecord(t, ("a", "b"), one, one / 2, flagged=np.zeros(2, bool), metrics={"accuracy": t / 10})


def state(t):
    return lambda: {"round": t, "params": torch.full((3,), float(t))}


def played(recorder, rounds):
    for t in rounds:
        recorder.commit(record(t), state(t))
        recorder.send()


def cut_off(folder, rounds, error, options):
    with Recorder(folder, **options) as recorder:
        recorder.start("mine", "test", CONFIG)
        played(recorder, rounds)
        raise error


def begun(folder, rounds, error=RuntimeError, **options):
    """A run that was cut off after some rounds."""
    with pytest.raises(error):
        cut_off(folder, rounds, error, options)


def head(folder):
    with Ledger(folder, read_only=True) as ledger:
        return ledger.run(1)


def test_a_run_from_start_to_end(tmp_path):
    sinks = Heard()
    with Recorder(tmp_path, sinks, every=2, last=5) as recorder:
        recorder.start("mine", "test", CONFIG, {"engine": "1.0"})
        played(recorder, range(1, 6))
        assert head(tmp_path).state == "running"
        recorder.finish({"accuracy": 0.5})
    run = head(tmp_path)
    assert (run.state, run.rounds, run.summary, run.engine) == ("done", 5, {"accuracy": 0.5}, "test")
    assert run.versions == {**versions(), "engine": "1.0"}
    assert list(saved(tmp_path, 1)) == [5, 4, 2]  # every second round and the last one
    assert (sinks.rounds, sinks.ended) == ([1, 2, 3, 4, 5], ["done"])
    with claim(tmp_path, 1):  # nobody holds it any more
        pass


@pytest.mark.parametrize(("error", "ends"), [(RuntimeError, "failed"), (KeyboardInterrupt, "interrupted")])
def test_an_error_marks_the_run_and_its_sinks(error, ends, tmp_path):
    sinks = Heard()
    begun(tmp_path, [1], error, sinks=sinks)
    assert head(tmp_path).state == ends
    assert head(tmp_path).error == ("RuntimeError" if ends == "failed" else "")
    assert sinks.ended == [ends]


def test_a_run_whose_rounds_came_to_nothing_says_why_until_it_goes_on(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.start("mine", "test", CONFIG)
        recorder.finish({"accuracy": 0.1}, "all clients are excluded")
        assert (head(tmp_path).state, head(tmp_path).error) == ("failed", "all clients are excluded")
        recorder.ledger.reopen(1, CONFIG)
        assert head(tmp_path).error == ""


def test_an_error_before_the_start_marks_nothing(tmp_path):
    sinks = Heard()
    with pytest.raises(RuntimeError), Recorder(tmp_path, sinks):
        raise RuntimeError
    with Ledger(tmp_path) as ledger:
        assert ledger.runs() == []
    assert sinks.ended == []


def test_a_run_is_continued_from_its_newest_sound_checkpoint(tmp_path):
    begun(tmp_path, [1, 2, 3])
    path = checkpoint_path(tmp_path, 1, 3)
    path.write_bytes(path.read_bytes()[:-1])
    draft = path.with_name("round-000004.safetensors.123.draft")
    draft.write_bytes(b"half")
    with Recorder(tmp_path) as recorder:
        found = recorder.ledger.run("mine")
        made, notes = recorder.resume(found, {"rounds": 9}, lambda state, t: (t, state["params"].tolist()))
        assert made == (2, [2.0, 2.0, 2.0])
        assert len(notes) == 1
        assert "continued from the one of round 2" in str(notes[0])
        assert not draft.exists()
        assert (head(tmp_path).state, head(tmp_path).config) == ("running", {"rounds": 9})
        played(recorder, [3, 4])
        recorder.finish()
    assert (head(tmp_path).state, head(tmp_path).rounds) == ("done", 4)


def test_a_run_that_cannot_be_continued_stays_as_it_was(tmp_path):
    begun(tmp_path, [1, 2])

    def refuse(state, t):
        raise CheckpointError("it is another's")

    with pytest.raises(CheckpointError, match="no checkpoint of run 1 can be used"), Recorder(tmp_path) as recorder:
        recorder.resume(recorder.ledger.run(1), {"rounds": 9}, refuse)
    assert (head(tmp_path).state, head(tmp_path).config) == ("failed", CONFIG)
    with claim(tmp_path, 1):
        pass


def test_without_checkpoints_there_is_nothing_to_use(tmp_path):
    begun(tmp_path, [1], every=2)
    with Recorder(tmp_path) as recorder:
        assert recorder.resume(recorder.ledger.run(1), CONFIG, lambda state, t: state) == (None, ())


def test_a_run_has_one_writer(tmp_path):
    with Recorder(tmp_path) as first, Recorder(tmp_path) as second:
        first.start("mine", "test", CONFIG)
        with pytest.raises(FedwardenError, match="run 1 is being written by process"):
            second.resume(second.ledger.run(1), CONFIG, lambda state, t: state)
        assert second.run == 0
        first.finish()
    assert head(tmp_path).state == "done"
