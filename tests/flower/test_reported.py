"""What nodes tell of themselves, and what a server sees of their replies, by client and round."""

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.flower import Guarded
from fedwarden.store.health import healths
from fedwarden.store.ledger import Ledger
from fedwarden.store.series import Series

from .nodes import BAD, NODES, LocalGrid, content, honest, model, one_round, trained


def telling(node, loss):
    def answer(message):
        if message.metadata.message_type == "evaluate":
            metrics = MetricRecord({"num-examples": 10, "acc": node / 1000})
            return [Message(RecordDict({"metrics": metrics}), reply_to=message)]
        t = int(message.content["config"]["server-round"])
        metrics = {"num-examples": 10, "train_loss": loss / t, "parts": [1.0, 2.0]}
        return [Message(content(trained(message, node), metrics), reply_to=message)]

    return answer


def test_numbers_of_single_nodes_are_kept(tmp_path):
    """With every loss as the node told it, though one is absurd and is bounded in the average."""
    nodes = {node: telling(node, 1e6 if node == BAD else node / 100) for node in NODES}
    nodes[NODES[0]] = lambda message: [] if message.metadata.message_type == "train" else honest(100)(message)
    Guarded(flower.FedAvg(), home=tmp_path).start(LocalGrid(nodes), model(), num_rounds=3)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    for t, record in enumerate(records, 1):
        others = {str(node) for node in NODES[1:]}
        assert set(record.reported) == {
            "train/train_loss", "reply/seconds", "reply/bytes", "update/cosine", "map/x", "map/y", "evaluate/acc",
        }  # fmt: skip
        assert record.reported["train/train_loss"][str(BAD)] == pytest.approx(1e6 / t)
        assert set(record.reported["train/train_loss"]) == set(record.reported["update/cosine"]) == others
        assert set(record.reported["evaluate/acc"]) == others | {"100"}  # one evaluates that did not train
        assert all(0 <= seconds < 60 for seconds in record.reported["reply/seconds"].values())
        assert len({*record.reported["reply/bytes"].values()}) == 1
        assert min(record.reported["reply/bytes"].values()) >= 17 * 4  # 4 x 3 + 4 + 1 numbers
    health = healths(Series.of(records))
    assert (health["100"].silent, health["100"].silent_since) == ((1, 2, 3), 1)
    assert health["101"].answered == (1, 2, 3)


def test_a_cosine_is_that_to_the_rest_of_the_step():
    guarded = Guarded(flower.FedAvg())
    grid, start = LocalGrid({node: honest(node) for node in NODES}), model()
    sent = list(guarded.configure_train(1, start, ConfigRecord(), grid))
    replies = grid.send_and_receive(sent)
    before = np.concatenate([a.numpy().ravel() for a in start.values()])
    steps = {
        str(m.metadata.src_node_id): np.concatenate([a.numpy().ravel() for a in m.content["arrays"].values()]) - before
        for m in replies
    }
    guarded.aggregate_train(1, replies)
    for client, step in steps.items():
        rest = sum(other for name, other in steps.items() if name != client)
        cosine = step @ rest / np.linalg.norm(step) / np.linalg.norm(rest)
        assert guarded.record.reported["update/cosine"][client] == pytest.approx(cosine, abs=1e-4)


def test_a_node_that_floods_metrics_loses_nobody_elses():
    def flooding(message):
        metrics = {"num-examples": 10, "train_loss": 0.5, **{f"x{i}": 1.0 for i in range(5000)}}
        return [Message(content(trained(message, BAD), metrics), reply_to=message)]

    guarded = Guarded(flower.FedAvg())
    one_round(guarded, {node: flooding if node == BAD else honest(node) for node in NODES})
    told = [name for name in guarded.record.reported if name.startswith("train/")]
    assert len(told) <= 32
    assert len(guarded.record.reported["train/train_loss"]) >= len(NODES) - 1


def test_what_jurors_report_is_kept_among_many_metrics():
    metrics = {f"class {i}": 0.5 for i in range(40)} | {"worse": 0.25}
    guarded = Guarded(flower.FedAvg(), fw.Warden.preset("auto", jurors=[str(NODES[0])]))
    one_round(guarded, {node: honest(node, metrics) for node in NODES})
    assert len(guarded.record.reported["train/worse"]) == len(NODES)
