"""Nothing that one reply makes a strategy or a reader do ends the run, and nobody answers for another."""

import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import strategy as flower

from fedwarden.core.notes import Note
from fedwarden.flower import Guarded
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, NODES, LocalGrid, N, content, crowd_with, honest, model, one_round, state, trained


class Clumsy(flower.FedAvg):
    """Its model is not finite in the first round, and it remembers that."""

    memory: ArrayRecord | None = None

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        if server_round == 1:
            arrays["fc.bias"] = Array(np.full(4, np.nan, np.float32))
        self.memory = arrays
        return arrays, metrics


def test_a_strategy_forgets_a_model_that_was_not_taken():
    guarded = Guarded(Clumsy())
    arrays, _ = one_round(guarded, {node: honest(node) for node in NODES})
    assert arrays is None
    assert guarded.strategy.memory is None
    assert guarded.record.notes == (Note.of("model_not_finite"),)


def fussy(records, key):
    if any(value > 1 for record in records for value in record["metrics"].values() if value != 10):
        raise RuntimeError("a loss above 1")
    return MetricRecord({"train_loss": 0.5})


@pytest.mark.parametrize("aggregator", [None, "mean"])
def test_metrics_that_cannot_be_combined_cost_no_model(aggregator):
    guarded = Guarded(flower.FedAvg(train_metrics_aggr_fn=fussy), aggregator=aggregator)
    arrays, metrics = one_round(guarded, crowd_with(honest(BAD, {"train_loss": 4.0})))
    fair, _ = one_round(flower.FedAvg(), {node: honest(node) for node in NODES})
    for name, value in state(fair).items():
        np.testing.assert_allclose(state(arrays)[name], value, rtol=1e-5)
    assert guarded.record.notes == (Note.of("metrics_failed", error="a loss above 1"),)
    assert metrics["fedwarden/combined"] == N
    assert guarded.strategy.train_metrics_aggr_fn is fussy


def trap(error):
    """A node whose arrays raise as they are read."""

    class Trap(ArrayRecord):
        def __getitem__(self, key):
            raise error("\x1b[2J")

        __contains__ = __getitem__

    def answer(message):
        reply = Message(content(trained(message, BAD)), reply_to=message)
        reply.content["arrays"] = Trap(dict(reply.content["arrays"]))
        return [reply]

    return answer


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OverflowError, KeyError, AssertionError])
def test_nothing_that_reading_raises_passes_the_barrier(error):
    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(trap(error)))
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert str(rejection.reason).startswith(f"cannot be read ({error.__name__}: ")
    assert "\x1b" not in str(rejection.reason)


def test_who_ends_the_run_by_hand_is_obeyed():
    with pytest.raises(KeyboardInterrupt):
        one_round(Guarded(flower.FedAvg()), crowd_with(trap(KeyboardInterrupt)))


def test_a_count_that_is_lost_in_rounding_is_a_rejection():
    """A strategy that does not weigh would use it all the same, beside a record that says it has no weight."""

    guarded = Guarded(flower.FedMedian())
    one_round(guarded, crowd_with(honest(BAD, {"num-examples": 5e-324})))
    assert str(guarded.record.rejected[0].reason) == "claims 4.94066e-324 examples; expected 1e-09 to 1e+15"


def test_nobody_answers_for_another_node():
    """The first reply of a client counts, so a forged one must not be the first."""
    victim = NODES[0]
    asked = {}

    def forging(message):
        forged = Message(content({k: v + 50 for k, v in trained(message, BAD).items()}), reply_to=asked[victim])
        forged.metadata.__dict__["_src_node_id"] = BAD
        return [forged]

    def remembering(node):
        def answer(message):
            asked[node] = message
            return honest(node)(message)

        return answer

    guarded = Guarded(flower.FedAvg())
    nodes = {node: forging if node == BAD else remembering(node) for node in NODES}
    random.seed(3)
    grid = LocalGrid(nodes)
    sent = sorted(guarded.configure_train(1, model(), ConfigRecord(), grid), key=lambda m: m.metadata.dst_node_id)
    replies = grid.send_and_receive(sent)
    guarded.aggregate_train(1, sorted(replies, key=lambda m: m.metadata.src_node_id != BAD))
    record = guarded.record
    assert {r.client_id for r in record.rejected} == {"unknown", str(BAD)}  # who did not answer, and a reply of nobody
    assert record.weights[record.client_ids.index(str(victim))] == pytest.approx(1 / 7)


def test_many_replies_of_one_client_do_not_outvote_the_others():
    """All of them have a metric that the others' lack; the others stay."""

    def stuffing(message):
        metrics = {"num-examples": 10, "other": 1.0}
        return [Message(content(trained(message, BAD), metrics), reply_to=message) for _ in range(3 * N)]

    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(stuffing))
    assert set(guarded.record.client_ids) == {str(node) for node in NODES} - {str(BAD)}


def test_a_second_reply_does_not_count_where_the_first_one_was_rejected():
    """Otherwise its update would be in the model of a round in which it is shown as rejected."""

    def answer(message):
        return [Message(content(arrays), reply_to=message) for arrays in ({"x": np.ones(1)}, trained(message, BAD))]

    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(answer))
    assert str(BAD) not in guarded.record.client_ids
    assert [r.reason.kind for r in guarded.record.rejected] == ["arrays_missing", "answered_twice"]


def test_a_node_that_client_name_does_not_know_ends_nothing():
    names = {node: f"site-{node}" for node in NODES if node != BAD}
    guarded = Guarded(flower.FedAvg(), client_name=names.__getitem__)
    one_round(guarded, {node: honest(node) for node in NODES})
    assert set(guarded.record.client_ids) == {*names.values(), str(BAD)}
