"""A guarded strategy sends its rounds to sinks, with the evaluation in them, and once each."""

from pathlib import Path

import pytest
from flwr.serverapp.strategy import FedAvg
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedwarden.flower import Guarded
from fedwarden.sinks import courier
from fedwarden.sinks.feed import Feed
from fedwarden.store import outbox
from fedwarden.store.ledger import Ledger

from .nodes import FragileGrid, Killed, LocalGrid, honest, model

NODES = {node: honest(node) for node in range(100, 106)}


def scalars(folder):
    (run,) = Path(folder).iterdir()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def guarded(tmp_path, **options):
    sinks = [{"name": "tensorboard", "folder": str(tmp_path / "live")}]
    return Guarded(FedAvg(), name="sunk", home=tmp_path / "home", sinks=sinks, **options)


def test_rounds_arrive_whole_and_as_they_are_in_the_ledger(tmp_path):
    guarded(tmp_path).start(LocalGrid(NODES), model(), 3)
    live = scalars(tmp_path / "live")
    with Ledger(tmp_path / "home", read_only=True) as ledger:
        Feed.of({"name": "tensorboard", "folder": str(tmp_path / "after")}).send(ledger, 1)
    assert live == scalars(tmp_path / "after")
    assert [t for t, _ in live["client/weight/100"]] == [1, 2, 3]
    assert any(tag.startswith("metric/evaluate/") for tag in live)


def test_a_server_that_was_killed_goes_on_where_its_sinks_are(tmp_path):
    with pytest.raises(Killed):
        guarded(tmp_path).start(FragileGrid(NODES, dies_in=3), model(), 4)
    guarded(tmp_path, resume=True).start(LocalGrid(NODES), model(), 4)
    assert [t for t, _ in scalars(tmp_path / "live")["round/clients"]] == [1, 2, 3, 4]


def test_a_sink_that_fails_is_pending_and_training_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(courier, "END", 0.5)
    (tmp_path / "live").write_text("a file, not a folder")
    result = guarded(tmp_path).start(LocalGrid(NODES), model(), 4)
    assert len(result.train_metrics_clientapp) == 4
    with Ledger(tmp_path / "home", read_only=True) as ledger:
        (message,) = outbox.messages(ledger, 1)
        kinds = {note.kind for record in ledger.records(1) for note in record.notes}
    assert "could not take round 1" in message.error
    assert not any(kind.startswith("sink") for kind in kinds)  # what becomes of a sink is no part of a round
