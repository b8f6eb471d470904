"""Metrics by an allow-list: at the node nothing else leaves it, at the server nothing else is averaged or recorded."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.flower import Guarded
from fedwarden.flower.mods import only_metrics

from .nodes import BAD, BASES, METRICS, NODES, asking, honest, of_node, play

SECRET = {"patients": 3.0, "site-name": 7.0}


def reply(message, **records):
    arrays = ArrayRecord({"w": Array(np.ones(2, np.float32))})
    told = {"metrics": MetricRecord({"num-examples": 5, "accuracy": 0.5, **SECRET}), "arrays": arrays, **records}
    return Message(RecordDict(told), reply_to=message)


@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_nothing_leaves_a_node_but_what_is_listed(kind):
    mod, message = only_metrics("num-examples", "accuracy"), asking(1, {"w": np.ones(2, np.float32)}, kind)
    extra = {
        "debug": ConfigRecord({"path": "/data/patients.csv"}),
        "more": MetricRecord({"loss": 1.0, "accuracy": 0.1}),
    }
    content = mod(message, of_node(), lambda m, c: reply(m, **extra)).content
    assert dict(content.metric_records["metrics"]) == {"num-examples": 5, "accuracy": 0.5}
    assert dict(content.metric_records["more"]) == {"accuracy": 0.1}
    assert not content.config_records
    assert list(content.array_records) == (["arrays"] if kind == "train" else [])


def _fail(message, context):
    raise KeyError("patient Smith")


@pytest.mark.parametrize("app", [_fail, lambda m, c: Message(Error(7, "patient Smith"), reply_to=m)])
def test_an_error_tells_nothing(app):
    answer = only_metrics("num-examples")(asking(1, {"w": np.ones(2, np.float32)}), of_node(), app)
    assert answer.has_error()
    assert "Smith" not in answer.error.reason


def told(more):
    return {**METRICS, **more}


@pytest.mark.parametrize("listed", [["train_loss"], []])
def test_the_server_averages_and_records_what_is_listed(listed):
    crowd = {n: honest(n, told(SECRET)) for n in NODES}
    guarded = Guarded(flower.FedAvg(), metrics=listed)
    _, result = play(guarded, crowd, rounds=1)
    names = {name.partition("/")[2] for name in guarded.record.reported if name.startswith(("train/", "evaluate/"))}
    assert names == set(listed)
    known = {*result.train_metrics_clientapp[1], *result.evaluate_metrics_clientapp[1]}
    assert not known & {*SECRET, "norm_bit", *({"train_loss"} - set(listed))}
    assert guarded.record.rejected == ()


def test_a_metric_of_one_client_alone_does_not_cost_it_its_vote():
    """Without a list its reply would be named otherwise than the others', and rejected."""
    crowd = {n: honest(n) for n in NODES} | {BAD: honest(BAD, told({"odd": float("nan")}))}
    plain, listing = Guarded(flower.FedAvg()), Guarded(flower.FedAvg(), metrics=["train_loss"])
    for guarded in (plain, listing):
        play(guarded, crowd, rounds=1)
    assert {r.client_id for r in plain.record.rejected} == {str(BAD)}
    assert listing.record.rejected == ()


def test_what_the_strategy_and_jurors_need_is_on_the_list_by_itself():
    guarded = Guarded(BASES["QFedAvg"](), metrics=[])
    play(guarded, {n: honest(n) for n in NODES}, rounds=1)
    assert guarded.record.weights.sum() == pytest.approx(1.0)
    jury = fw.Warden.preset("auto", jurors=[str(NODES[0])])
    guarded = Guarded(flower.FedAvg(), jury, metrics=[])
    play(guarded, {n: honest(n, told({"worse": 0.25})) for n in NODES}, rounds=1)
    assert set(guarded.record.reported["train/worse"].values()) == {0.25}


def test_one_name_is_a_list_of_one():
    guarded = Guarded(flower.FedAvg(), metrics="loss")
    play(guarded, {n: honest(n, told({"loss": 0.25})) for n in NODES}, rounds=1)
    assert set(guarded.record.reported["train/loss"].values()) == {0.25}


def test_the_worst_clients_accuracy_stands_beside_the_mean():
    """One client has .2, another says 70; the worst is named among those that are no percentages."""

    def node(number):
        def answer(message):
            (one,) = honest(number)(message)
            if message.metadata.message_type == "evaluate":
                found = 0.2 if number == BAD else 70.0 if number == NODES[0] else 0.8
                one.content["metrics"] = MetricRecord({"num-examples": 10, "eval_acc": found})
            return [one]

        return answer

    guarded = Guarded(flower.FedAvg())
    play(guarded, {n: node(n) for n in NODES}, rounds=1)
    assert guarded.record.metrics["worst_accuracy"] == pytest.approx(0.2)
    assert guarded.record.metrics.get("accuracy") != pytest.approx(0.2)
