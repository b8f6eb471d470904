"""One bad node of eight changes nothing: every strategy against every bad reply, without Ray."""

import random

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.flower import Guarded
from fedwarden.flower.records import Template
from fedwarden.guard.admission import cohort_of
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import RoundStory

from .nodes import (
    BAD,
    BAD_REPLIES,
    BASES,
    NODES,
    LocalGrid,
    N,
    bad,
    close,
    crowd_with,
    first_message,
    honest,
    model,
    one_round,
    play,
    shifted,
    state,
    trained,
    training,
)


@pytest.mark.parametrize("base", BASES)
def test_one_bad_node_changes_nothing(base):
    alone = {}
    for used in (True, False):  # the strategy by itself on honest nodes, with and without the last
        crowd = {node: honest(node) for node in NODES if used or node != BAD}
        alone[used] = one_round(BASES[base](), crowd)[0]
    for kind, (_, used) in BAD_REPLIES.items():
        crowd = crowd_with(bad(kind, BAD))
        guarded = Guarded(BASES[base]())
        arrays, metrics = one_round(guarded, crowd)
        close(arrays, alone[used])
        assert metrics["fedwarden/combined"] == (N if used else N - 1), kind
        assert {r.client_id for r in guarded.record.rejected} == (set() if kind == "another order" else {str(BAD)})


@pytest.mark.parametrize("loss", [1e12, 0.0, 1e-300])
def test_a_claimed_loss_neither_owns_nor_stalls_q_fedavg(loss):
    crowd = crowd_with(honest(BAD, {"train_loss": loss}))
    _, result = play(Guarded(flower.QFedAvg(client_learning_rate=0.1)), crowd, rounds=1)
    step = state(result.arrays)["fc.bias"] - state(model())["fc.bias"]
    assert (step < -0.05).all()
    assert (step > -0.15).all()


NORMED = {"fc.weight": (4, 3), "bn.running_var": (5,), "bn.num_batches_tracked": (), "fc.bias": (4,), "order": (3,)}


def normed_model():
    whole = ("order", "bn.num_batches_tracked")
    arrays = {k: np.ones(s, np.int64 if k in whole else np.float32) for k, s in NORMED.items()}
    return ArrayRecord({k: Array(v) for k, v in arrays.items()})


def normed(node, poison):
    def moved(message):
        rng, sent = np.random.default_rng(node), state(message.content["arrays"])
        arrays = {k: np.asarray(v + 0.1 * rng.normal(size=v.shape), v.dtype) for k, v in sent.items()}
        arrays["order"] = sent["order"]
        arrays["bn.num_batches_tracked"] = np.asarray(sent["bn.num_batches_tracked"] + 50)
        if poison:
            arrays["bn.running_var"] = np.full(5, 42.0, np.float32)
            arrays["order"] = np.array([500, -7, 3])
        return arrays

    return training(moved)


@pytest.mark.parametrize("combine", [False, True])
def test_what_is_not_measured_cannot_be_poisoned(combine):
    """Honest weights with absurd variances and indices out of range: the mean of them would end the model."""
    rounds = {}
    for poison in (False, True):
        crowd = {node: normed(node, poison and node == BAD) for node in NODES}
        strategy = Guarded(flower.FedAvg(), "pid_made", aggregator="mean" if combine else None)
        grid = LocalGrid(crowd)
        random.seed(0)
        rounds[poison] = strategy.start(grid, normed_model(), num_rounds=2), strategy
    fair, found = (state(result.arrays) for result, _ in rounds.values())
    assert found["bn.running_var"].min() > 0.5
    assert np.abs(found["bn.running_var"] - fair["bn.running_var"]).max() < 0.3
    assert found["order"].tolist() == [1, 1, 1]
    assert int(found["bn.num_batches_tracked"]) == 101
    np.testing.assert_allclose(found["fc.weight"], fair["fc.weight"], atol=1e-5)
    notes = rounds[True][1].record.notes
    assert any(note.kind == "buffers_far" and note.clients == (str(BAD),) for note in notes)


def test_a_node_in_doubt_takes_turns_and_is_asked_every_round():
    """In 30 rounds it is on trial in most and skipped in some; a skipped node's reply is not in the round's model."""
    crowd = crowd_with(shifted(5.0))
    guarded = Guarded(flower.FedAvg(), fw.Warden.preset("auto", secret=1))
    grid, _ = play(guarded, crowd, rounds=30)
    assert guarded.warden.excluded == ()
    assert grid.asked.count(("train", BAD)) == grid.asked.count(("evaluate", BAD)) == 30
    records = guarded.warden.recent
    turns = [RoundStory(r).in_doubt.get(str(BAD)) for r in records]
    weights = [float(r.weights[r.client_ids.index(str(BAD))]) for r in records]
    assert all((weight > 0) == (what == "on trial") for weight, what in zip(weights, turns, strict=True))
    assert 20 <= turns.count("on trial") <= 29
    assert turns.count("skipped") == 30 - turns.count("on trial")


def excluding():
    """A warden that excludes for good at once."""
    watch = fw.Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, start_round=1)
    return fw.Warden([watch], "quarantine")


def test_a_poisoned_node_is_excluded_and_no_longer_asked():
    crowd = crowd_with(shifted(5.0))
    guarded = Guarded(flower.FedAvg(), excluding())
    grid, result = play(guarded, crowd, rounds=5)
    assert guarded.warden.excluded == (str(BAD),)
    assert grid.asked.count(("train", BAD)) == 1
    assert grid.asked.count(("evaluate", BAD)) == 0
    assert grid.asked.count(("train", 100)) == 5
    close(result.arrays, play(flower.FedAvg(), {n: c for n, c in crowd.items() if n != BAD}, rounds=5)[1].arrays)


def test_a_strategy_that_wants_all_nodes_does_not_wait_for_an_excluded_one():
    crowd = crowd_with(shifted(5.0))
    base = flower.FedAvg(min_train_nodes=N, min_evaluate_nodes=N, min_available_nodes=N)
    grid, result = play(Guarded(base, excluding()), crowd, rounds=5)
    assert len(result.train_metrics_clientapp) == 5
    assert grid.asked.count(("train", BAD)) == 1


def test_down_weighting_acts_through_the_count():
    """The model is the mean under the recorded weights, in which the poisoned node has little."""
    watch = fw.Watch("centroid_distance", "raw", {"name": "k_sigma", "k": 1e9}, start_round=1)
    warden = fw.Warden([watch], {"name": "down_weight", "limit": 3.0})
    crowd = crowd_with(shifted(5.0))
    guarded = Guarded(flower.FedAvg(), warden)
    _, result = play(guarded, crowd, rounds=1)
    weights = dict(zip(guarded.record.client_ids, guarded.record.weights.tolist(), strict=True))
    assert 0 < weights[str(BAD)] < 0.03
    ask = first_message()
    start = state(model())["fc.bias"]
    expected = sum(w * (start + 5 if int(c) == BAD else trained(ask, int(c))["fc.bias"]) for c, w in weights.items())
    np.testing.assert_allclose(state(result.arrays)["fc.bias"], expected, rtol=1e-5)


def test_an_aggregator_of_fedwarden_in_place_of_the_strategy():
    guarded = Guarded(flower.FedAvg(), "none", aggregator="median")
    _, result = play(guarded, {node: honest(node) for node in NODES}, rounds=1)
    ask = first_message()
    expected = np.median([trained(ask, node)["fc.weight"] for node in NODES], axis=0)
    np.testing.assert_allclose(state(result.arrays)["fc.weight"], expected, atol=1e-6)
    assert state(result.arrays)["scale"].dtype == np.float32
    assert result.train_metrics_clientapp[1]["train_loss"] == pytest.approx(0.5)


def test_bad_evaluations_are_left_out():
    def liar(value):
        def answer(message):
            if message.metadata.message_type != "evaluate":
                return honest(BAD)(message)
            return [Message(RecordDict({"metrics": MetricRecord(value)}), reply_to=message)]

        return answer

    for value in ({"num-examples": -5, "acc": 1.0}, {"num-examples": 10, "acc": float("nan")}, {"acc": 1.0}, {}):
        crowd = crowd_with(liar(value))
        guarded = Guarded(flower.FedAvg())
        _, result = play(guarded, crowd, rounds=1)
        assert result.evaluate_metrics_clientapp[1]["acc"] == pytest.approx(0.5)
        assert any(str(BAD) in note.clients for note in guarded.record.notes)


def test_every_round_is_in_the_ledger():
    crowd = crowd_with(bad("nan", BAD))

    def evaluate(t, arrays):
        return MetricRecord({"accuracy": 0.1 * t})

    random.seed(0)
    Guarded(flower.FedAvg(), name="mine").start(LocalGrid(crowd), model(), 3, evaluate_fn=evaluate)
    with Ledger() as ledger:
        run = ledger.run("mine")
        records = ledger.records(run.id)
    assert (run.engine, run.state, run.rounds) == ("flower", "done", 3)
    assert [r.metrics["accuracy"] for r in records] == pytest.approx([0.1, 0.2, 0.3])
    assert records[0].metrics["evaluate/acc"] == pytest.approx(0.5)
    assert all(r.rejected[0].client_id == str(BAD) for r in records)


@pytest.mark.parametrize(
    ("told", "name", "accuracy"),
    [
        ({"eval_acc": 0.7}, "", 0.7),  # what the server measured, whatever it is called
        ({"accuracy": 0.6, "eval_acc": 0.7}, "", 0.6),
        ({"top1": 0.4, "eval_acc": 0.7}, "top1", 0.4),
        ({"loss": 2.0}, "", 0.5),  # else what the clients evaluated
        ({"loss": 2.0}, "top1", None),
    ],
)
def test_the_accuracy_is_found_under_its_own_name(told, name, accuracy):
    guarded = Guarded(flower.FedAvg(), name="mine", accuracy=name)
    crowd = {node: honest(node) for node in NODES}
    guarded.start(LocalGrid(crowd), model(), 2, evaluate_fn=lambda t, arrays: MetricRecord(told))
    with Ledger() as ledger:
        run = ledger.run("mine")
        found = [r.metrics.get("accuracy") for r in ledger.records(run.id)]
    assert found == pytest.approx([accuracy] * 2)
    assert run.summary["accuracy"] == pytest.approx(accuracy)


def test_the_log_says_where_to_look(caplog):
    with caplog.at_level("INFO", logger="flwr"):
        Guarded(flower.FedAvg(), name="mine").start(LocalGrid({n: honest(n) for n in NODES}), model(), 1)
    told = "\n".join(record.getMessage() for record in caplog.records)
    assert "fedwarden: No client was excluded" in told
    assert "fedwarden show 1 --home" in told


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (Array(np.frombuffer(b"{}", np.uint8)), "no floating-point array to share"),
        (Array(np.array(["a"])), "the model cannot be read as a NumPy array of real numbers"),
    ],
)
def test_a_model_that_is_not_made_of_weights_is_refused(array, said):
    crowd = LocalGrid({1: honest(1), 2: honest(2)})
    with pytest.raises(ConfigError, match=said):
        Guarded(flower.FedAvg()).start(crowd, ArrayRecord({"0": array}), 2)
    assert crowd.asked == []


def test_a_cohort_names_the_layers_by_their_columns():
    model = {"fc.weight": np.zeros((3, 4), np.float32), "fc.bias": np.zeros(3, np.float32), "seen": np.array(1)}
    template = Template.of(ArrayRecord({name: Array(array) for name, array in model.items()}))
    cohort = cohort_of(1, [], template, torch.zeros(16), None, {})
    assert cohort.layers == {"fc.weight": 0, "fc.bias": 12, "seen": 15}
    assert cohort.output is not None
    assert cohort.output[:3] == (0, 12, 3)


@pytest.mark.parametrize(
    ("strategy", "warden", "said"),
    [
        (
            flower.FedAvg,
            "auto",
            "wraps a strategy of flwr.serverapp.strategy, such as FedAvg.*; got the class .*FedAvg",
        ),
        (object(), "auto", "got a builtins.object"),
        (flower.FedAvg(), {"preset": "auto"}, "warden is the name of a preset or a Warden; got dict"),
    ],
)
def test_what_is_no_strategy_is_told_of_at_once(strategy, warden, said):
    with pytest.raises(TypeError, match=said):
        Guarded(strategy, warden)


def test_a_node_that_sends_nan_does_not_stop_a_rule_at_its_smallest_n():
    nodes = range(100, 107)  # krum with f = 2 needs 7
    crowd = {node: honest(node) for node in nodes} | {BAD: bad("nan", BAD)}
    guarded = Guarded(flower.FedAvg(), aggregator={"name": "krum", "f": 2})
    play(guarded, crowd, rounds=3)
    for record in guarded.warden.recent:
        assert [r.client_id for r in record.rejected] == [str(BAD)]
        assert record.weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("trees", [flower.FedXgbBagging, flower.FedXgbCyclic])
def test_a_strategy_whose_replies_are_trees_is_refused(trees):
    with pytest.raises(ConfigError, match=f"replies of {trees.__name__} are trees: run it without Guarded"):
        Guarded(trees())
