"""One client cannot change the dtype of a model, its variances, its metrics, or which run is continued."""

from __future__ import annotations

import logging
import random

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.flower import Guarded
from fedwarden.flower.inbox import largest_metric
from fedwarden.store.ledger import Ledger
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, BASES, NODES, LocalGrid, N, content, evaluated, honest, model, one_round, state, trained

from .replies import CRAFTED, HOSTILE, raw


def sending(node, change):
    """A node that is honest but for what a function makes of its arrays."""

    def answer(message):
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        return [Message(content(change(trained(message, node))), reply_to=message)]

    return answer


def crowd_with(bad, nodes=NODES):
    return {node: bad if node == BAD else honest(node) for node in nodes}


# dtype


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("base", BASES)
def test_the_model_keeps_its_dtype_whatever_the_first_reply_has(base, dtype):
    nodes = {node: sending(node, lambda a: {k: v.astype(dtype) for k, v in a.items()}) for node in NODES[:3]}
    guarded = Guarded(BASES[base]())
    arrays, _ = one_round(guarded, {**{node: honest(node) for node in NODES}, **nodes})
    assert {v.dtype.str for v in state(arrays).values()} == {"<f4"}
    (note,) = [n for n in guarded.record.notes if "converted" in n]
    assert "for 3 arrays; the model has float32: converted" in note
    assert all(str(node) in note for node in NODES[:3])
    fair, _ = one_round(BASES[base](), {node: honest(node) for node in NODES})
    for name, value in state(fair).items():  # float16 has three digits
        np.testing.assert_allclose(state(arrays)[name], value, rtol=2e-3, atol=2e-3)


def test_a_number_too_large_for_the_models_dtype_is_a_rejection():
    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(sending(BAD, lambda a: {**a, "fc.bias": np.array([1.0, 2.0, 3.0, 1e39])})))
    (rejection,) = guarded.record.rejected
    assert rejection.reason == "array 'fc.bias' holds 1e+39, too large for the model's float32"


COUNTED = {"w": np.zeros(5, np.float32), "seen": np.zeros(2, np.int32)}


def counting(node, seen):
    def answer(message):
        rng = np.random.default_rng(node)
        arrays = {"w": np.asarray(0.1 * rng.normal(size=5), np.float32), "seen": np.asarray(seen)}
        return [Message(content(arrays), reply_to=message)]

    return answer


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (np.array([7, 7], np.int64), None),
        (np.array([7, 7], np.uint8), None),
        (np.array([7, 7], ">i2"), None),
        (np.array([7.0, 7.0]), None),
        (np.array([7, 2**31]), "holds 2147483648; the model's int32 goes from -2147483648 to 2147483647"),
        (np.array([7, 2**64 - 1], np.uint64), "holds 18446744073709551615; the model's int32 goes from"),
        (np.array([7.0, 7.5]), "has dtype float64; expected an integer type"),
        (np.array([7.0, np.nan]), "has dtype float64; expected an integer type"),
        (np.array([7.0, 1e300]), "the model's int32 goes from -2147483648 to 2147483647"),
    ],
)
def test_integers_are_converted_where_they_fit(seen, reason):
    guarded, start = Guarded(flower.FedAvg()), ArrayRecord({k: Array(v) for k, v in COUNTED.items()})
    nodes = {node: counting(node, seen if node == BAD else np.array([7, 7], np.int32)) for node in NODES}
    arrays, _ = one_round(guarded, nodes, start)
    assert arrays["seen"].numpy().tolist() == [7, 7]
    assert arrays["seen"].numpy().dtype == np.int32
    assert [reason in r.reason for r in guarded.record.rejected] == ([True] if reason else [])


# variances

NORMED = {"w": np.zeros(5, np.float32), "bn.running_var": np.ones(3, np.float32)}


def normed(node, variance):
    def answer(message):
        rng = np.random.default_rng(node)
        arrays = {"w": np.asarray(0.1 * rng.normal(size=5), np.float32), "bn.running_var": np.float32(variance)}
        return [Message(content(arrays), reply_to=message)]

    return answer


def normed_model():
    return ArrayRecord({k: Array(v) for k, v in NORMED.items()})


def test_a_negative_variance_is_a_rejection():
    guarded = Guarded(flower.FedAvg())
    nodes = {node: normed(node, [1.0, 1.0, -20.0 if node == BAD else 1.0]) for node in NODES}
    arrays, _ = one_round(guarded, nodes, normed_model())
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert rejection.reason == "array 'bn.running_var' has a negative variance (-20); expected at least 0"
    assert arrays["bn.running_var"].numpy().tolist() == [1.0, 1.0, 1.0]


class Extrapolating(flower.FedAvg):
    """Goes twice as far as the clients, as a large server learning rate does."""

    def configure_train(self, server_round, arrays, config, grid):
        self.start = state(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        moved = {k: 2 * v - self.start[k] for k, v in state(arrays).items()}
        return ArrayRecord({k: Array(v) for k, v in moved.items()}), metrics


def test_no_model_is_handed_out_with_a_negative_variance():
    """1 falls to 0.25, and twice as far is -0.5."""
    guarded = Guarded(Extrapolating())
    arrays, _ = one_round(guarded, {node: normed(node, [0.25, 1.0, 2.0]) for node in NODES}, normed_model())
    assert arrays["bn.running_var"].numpy().tolist() == [0.0, 1.0, 3.0]
    assert guarded.record.notes == (
        "array 'bn.running_var' of the new model had a negative variance (-0.5); 0 is used",
    )


# what strategies do with it


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
    assert guarded.record.notes == ("the strategy's model was not finite; the model is kept",)


def fussy(records, key):
    if any(value > 1 for record in records for value in record["metrics"].values() if value != 10):
        raise RuntimeError("a loss above 1")
    return MetricRecord({"train_loss": 0.5})


@pytest.mark.parametrize("aggregator", [None, "mean"])
def test_metrics_that_cannot_be_combined_cost_no_model(aggregator):
    def lossy(message):
        metrics = {"num-examples": 10, "train_loss": 4.0, "norm_bit": 1}
        return [Message(content(trained(message, BAD), metrics), reply_to=message)]

    guarded = Guarded(flower.FedAvg(train_metrics_aggr_fn=fussy), aggregator=aggregator)
    arrays, metrics = one_round(guarded, crowd_with(lossy))
    fair, _ = one_round(flower.FedAvg(), {node: honest(node) for node in NODES})
    for name, value in state(fair).items():
        np.testing.assert_allclose(state(arrays)[name], value, rtol=1e-5)
    assert guarded.record.notes == ("the metrics could not be combined: a loss above 1",)
    assert metrics["fedwarden/combined"] == N
    assert guarded.strategy.train_metrics_aggr_fn is fussy


# the barrier


@pytest.mark.parametrize("error", [MemoryError, RecursionError, OverflowError, KeyError, AssertionError])
def test_nothing_that_reading_raises_passes_the_barrier(error, monkeypatch):
    class Trap(ArrayRecord):
        def __contains__(self, key):
            raise error("\x1b[2J")

    def trapped(message):
        reply = Message(content(trained(message, BAD)), reply_to=message)
        reply.content["arrays"] = Trap(dict(reply.content["arrays"]))
        return [reply]

    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(trapped))
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert rejection.reason.startswith(f"cannot be read ({error.__name__}: ")
    assert "\x1b" not in rejection.reason


def test_who_ends_the_run_by_hand_is_obeyed():
    class Trap(ArrayRecord):
        def __contains__(self, key):
            raise KeyboardInterrupt

    def trapped(message):
        reply = Message(content(trained(message, BAD)), reply_to=message)
        reply.content["arrays"] = Trap(dict(reply.content["arrays"]))
        return [reply]

    with pytest.raises(KeyboardInterrupt):
        one_round(Guarded(flower.FedAvg()), crowd_with(trapped))


def test_a_count_that_is_lost_in_rounding_is_a_rejection():
    """A strategy that does not weigh would use it all the same, beside a record that says it has no weight."""

    def shy(message):
        metrics = {"num-examples": 5e-324, "train_loss": 0.5, "norm_bit": 1}
        return [Message(content(trained(message, BAD), metrics), reply_to=message)]

    guarded = Guarded(flower.FedMedian())
    one_round(guarded, crowd_with(shy))
    assert guarded.record.rejected[0].reason == "claims 4.94066e-324 examples; expected at least 1e-09"


# whose reply it is


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


def test_a_node_that_client_name_does_not_know_ends_nothing():
    names = {node: f"site-{node}" for node in NODES if node != BAD}
    guarded = Guarded(flower.FedAvg(), client_name=names.__getitem__)
    one_round(guarded, {node: honest(node) for node in NODES})
    assert set(guarded.record.client_ids) == {*names.values(), str(BAD)}


# metrics


def evaluating(value):
    return lambda m: [Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, **value})}), reply_to=m)]


@pytest.mark.parametrize("n", [2, 3, 4, 8, 20, 100])
@pytest.mark.parametrize("lie", [1e300, -1e300, 1e9, [1e300]])
def test_one_evaluation_does_not_own_the_average(n, lie):
    rng = np.random.default_rng(n)
    fair = rng.uniform(0.4, 0.9, size=n - 1)
    listed = isinstance(lie, list)
    nodes = {100 + i: evaluating({"acc": [float(v)] if listed else float(v)}) for i, v in enumerate(fair)}
    nodes[99] = evaluating({"acc": lie})
    guarded, grid = Guarded(flower.FedAvg()), LocalGrid(nodes)
    guarded.configure_train(1, model(), ConfigRecord(), grid)
    replies = grid.send_and_receive(guarded.configure_evaluate(1, model(), ConfigRecord(), grid))
    guarded.record = fw.core.types.RoundRecord(1, (), np.zeros(0), np.zeros(0))
    found = guarded.aggregate_evaluate(1, replies)["acc"]
    found = found[0] if listed else found
    others = fair.mean() * (n - 1) / n  # the liar adds or takes at most ten times the largest, in its share of 1/n
    assert abs(found - others) <= max(1, 10 * fair.max()) / n + 1e-9
    (note,) = guarded.record.notes
    assert note.startswith("evaluation of client 99: its metric 'acc' is ")
    assert "counts as" in note


@pytest.mark.parametrize("n", [2, 3, 5, 10, 100])
def test_honest_metrics_are_never_cut(n):
    """Accuracies of any spread, and losses that differ by less than a factor of ten."""
    rng = np.random.default_rng(n)
    for _ in range(200):
        shares = rng.choice([0.0, 1e-9, 0.01, 0.5, 1.0], size=(n, 1))
        assert np.isinf(largest_metric(shares)).all()
        losses = 10 ** rng.uniform(0, 1) * rng.uniform(1, 9.99, size=(n, 1))
        assert (np.abs(losses) <= largest_metric(losses)).all()
        assert (np.abs(1000 * losses) <= largest_metric(-1000 * losses)).all()


def test_fewer_than_half_of_the_clients_together_do_not_own_the_average():
    values = np.array([[0.5], [0.6], [0.7], [1e300], [1e300]])
    assert largest_metric(values).tolist() == [7.0]


def test_a_metric_of_training_is_bounded_too():
    def boasting(message):
        metrics = {"num-examples": 10, "train_loss": 1e300, "norm_bit": 1}
        return [Message(content(trained(message, BAD), metrics), reply_to=message)]

    guarded = Guarded(flower.FedAvg())
    _, metrics = one_round(guarded, crowd_with(boasting))
    assert metrics["train_loss"] == pytest.approx((7 * 0.5 + 5.0) / 8)  # ten times the others' 0.5
    assert guarded.record.notes == (
        f"client {BAD}: its metric 'train_loss' is 1e+300, far from the others', and counts as 5",
    )


# resume


class Killed(BaseException):
    """Stands for kill -9."""


class Dying(LocalGrid):
    """Dies in the third round."""

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages[0].content["config"]["server-round"] == 3:
            raise Killed
        return super().send_and_receive(messages, timeout=timeout)


def start(home, strategy=flower.FedAvg, rounds=4, grid=LocalGrid, arrays=None, warden="auto", resume=True, **options):
    guarded = Guarded(strategy(), warden, name="mine", home=home, resume=resume, **options)
    shape = arrays or model()

    def node(number):
        def answer(message):
            if message.metadata.message_type == "evaluate":
                return evaluated(message)
            return [Message(content(trained(message, number)), reply_to=message)]

        return answer

    guarded.start(grid({n: node(n) for n in NODES}), shape, rounds)
    return guarded


def wider():
    return ArrayRecord({**model(), "more": Array(np.zeros(2, np.float32))})


def other_dtype():
    return ArrayRecord({k: Array(v.astype(np.float64)) for k, v in state(model()).items()})


def strict():
    return fw.Warden(fw.Warden.preset("auto").watches, "quarantine", admission=fw.Admission(count_ratio=2.0))


OTHERS = {
    "the strategy": ({"strategy": flower.FedAdam}, "strategy"),
    "the preset": ({"warden": "pid-made"}, "watches"),
    "an option of the preset": ({"warden": lambda: fw.Warden.preset("pid-made", k=3.0)}, "watches"),
    "the policy": ({"warden": lambda: fw.Warden(fw.Warden.preset("auto").watches, "observe")}, "policy"),
    "the admission": ({"warden": strict}, "admission"),
    "who combines": ({"aggregator": "median"}, "aggregator"),
    "the buffers": ({"buffers": ("bias",)}, "model"),
    "the names of arrays": ({"arrays": wider}, "model"),
    "the dtypes": ({"arrays": other_dtype}, "model"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_another_experiments_run_is_not_continued(kind, tmp_path, caplog):
    change, part = OTHERS[kind]
    change = {k: v() if k in ("warden", "arrays") and callable(v) else v for k, v in change.items()}
    with pytest.raises(Killed):
        start(tmp_path, grid=Dying)
    caplog.set_level(logging.WARNING, "flwr")
    other = start(tmp_path, **change)
    (line,) = [r.getMessage() for r in caplog.records if "not continued" in r.getMessage()]
    assert line.startswith("fedwarden: run 1 (mine) is not continued, since it differs in ")
    assert part in line
    assert "run 2 starts at round 1" in line
    assert other.done == 0
    with Ledger(tmp_path) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()] == [(2, "done", 4), (1, "failed", 2)]
    assert start(tmp_path, rounds=6).done == 2  # and the first experiment can still be continued, for more rounds
    with Ledger(tmp_path) as ledger:
        assert [(r.id, r.state, r.rounds) for r in ledger.runs()] == [(2, "done", 4), (1, "done", 6)]


def test_a_reply_that_would_end_a_run_ends_neither_it_nor_its_resume(tmp_path):
    """The bad node sends a crafted header, or a lie, in every round and every evaluation, before the cut and after."""
    crafted = list(CRAFTED.values())

    def worst(message):
        t = int(message.content["config"]["server-round"])
        if message.metadata.message_type == "evaluate":
            return evaluating({"acc": 1e300, HOSTILE: 1.0} if t % 2 else {"acc": float("nan")})(message)
        return [Message(content({**trained(message, BAD), "fc.bias": raw(crafted[7 * t])}), reply_to=message)]

    with pytest.raises(Killed):
        Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path).start(Dying(crowd_with(worst)), model(), 6)
    again = Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path, resume=True)
    result = again.start(LocalGrid(crowd_with(worst)), model(), 6)
    assert again.done == 2
    assert sorted(result.train_metrics_clientapp) == [3, 4, 5, 6]
    fair = Guarded(flower.FedAvgM(server_momentum=0.9), home=tmp_path / "fair")
    expected = fair.start(LocalGrid({n: honest(n) for n in NODES if n != BAD}), model(), 6)
    for name, value in state(expected.arrays).items():
        np.testing.assert_allclose(state(result.arrays)[name], value, rtol=1e-4, atol=1e-5)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    assert [[r.client_id for r in record.rejected] for record in records] == [[str(BAD)]] * 6
    assert all(record.metrics["evaluate/acc"] == pytest.approx(0.5) for record in records)


def test_the_same_experiment_is_continued_without_a_word(tmp_path, caplog):
    for warden in ("auto", "pid-made"):
        with pytest.raises(Killed):
            start(tmp_path / warden, grid=Dying, warden=fw.Warden.preset(warden))
        assert start(tmp_path / warden, warden=warden).done == 2
    assert not [r for r in caplog.records if "not continued" in r.getMessage()]


def test_a_run_without_what_tells_experiments_apart_is_not_continued(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.start("mine", "flower", {"strategy": "FedAvg", "rounds": 3}, {})
    assert start(tmp_path).journal.run == 2
