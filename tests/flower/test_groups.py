"""Groups that Flower's own SecAgg+ sums, in process: every node is a ClientApp with its mod; the guard sees sums."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common import ndarray_to_bytes
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp.strategy import FedAvg

from fedwarden.core.errors import ConfigError
from fedwarden.flower import GuardedGroups, secure_mod
from fedwarden.flower.secure import SumFailed, flatten, secure_sum
from fedwarden.guard.groups import Groups
from fedwarden.store.ledger import Ledger

from .nodes import LocalGrid, Node, content, evaluated, first_message, model, play, state, trained

Forge = Callable[[Message], Message]


def node(number: int, scale: float = 1.0, examples: int = 10, forge: Forge | None = None) -> Node:
    """A node with Flower's client side; it sends ``scale`` times its update, and its replies may be forged."""
    app, context = ClientApp(mods=[secure_mod]), Context(1, number, {}, RecordDict(), {})

    @app.train()
    def train(message: Message, _: Context) -> Message:
        old, new = state(message.content.array_records["arrays"]), trained(message, number)
        sent = {k: np.asarray(old[k] + scale * (new[k] - old[k]), np.float32) for k in new}
        return Message(content(sent, {"num-examples": examples, "train_loss": 0.5}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, _: Context) -> Message:
        return evaluated(message)[0]

    def answer(message: Message) -> list[Message]:
        reply = app(copy.deepcopy(message), context)  # as on a wire
        return [forge(reply) if forge and message.metadata.message_type == "train" else reply]

    return answer


def forged(change: Callable[[Any], Any]) -> Forge:
    """Replies whose masked vector is changed."""

    def forge(reply: Message) -> Message:
        record = reply.content.config_records[RECORD_KEY_CONFIGS]
        if Key.MASKED_PARAMETERS in record:
            record[Key.MASKED_PARAMETERS] = change(record[Key.MASKED_PARAMETERS])
        return reply

    return forge


def summed(nodes: dict[int, Node], workflow: SecAggPlusWorkflow | None = None) -> tuple[Any, float]:
    return secure_sum(
        LocalGrid(nodes), workflow or SecAggPlusWorkflow(1.0, 1.0), list(nodes), first_message().content, 1
    )


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_sum_of_a_group_is_the_weighted_mean_of_its_members(size):
    counts = {100 + i: 10 * (i + 1) for i in range(size)}
    mean, examples = summed({n: node(n, examples=count) for n, count in counts.items()})
    message, start = first_message(), flatten(model())
    rows = [np.concatenate([np.ravel(a) for a in trained(message, n).values()]) - start for n in counts]
    np.testing.assert_allclose(mean, np.average(rows, axis=0, weights=list(counts.values())), atol=2e-4)
    assert examples == sum(counts.values())


def test_what_leaves_a_node_is_masked_but_for_its_count_of_examples():
    sent = list[Message]()

    def keep(reply: Message) -> Message:
        sent.append(copy.deepcopy(reply))
        return reply

    summed({n: node(n, forge=keep) for n in (100, 101, 102)})
    assert not any(len(r) for m in sent for r in m.content.array_records.values())
    assert {k for m in sent for record in m.content.metric_records.values() for k in record} == {"num_examples"}


@pytest.mark.parametrize(
    "change",
    [
        lambda sent: sent[:1],
        lambda sent: [sent[0], ndarray_to_bytes(np.zeros((17, 1), np.int64))],
        lambda sent: [sent[0], ndarray_to_bytes(np.zeros(1, np.int64))],
        lambda sent: [sent[0], b"rubbish"],
        lambda sent: [],
    ],
    ids=["one part", "a column", "one number", "rubbish", "nothing"],
)
def test_a_vector_that_cannot_be_summed_counts_as_no_answer(change):
    nodes = {n: node(n, forge=forged(change) if n == 101 else None) for n in (100, 101, 102, 103)}
    with pytest.raises(SumFailed, match="any of them can bring that about"):  # and nobody is named
        summed(nodes)
    mean, examples = summed(nodes, SecAggPlusWorkflow(1.0, 0.5))  # three shares are enough: the sum of the others
    assert examples == 30
    assert np.abs(mean + 0.1).max() < 0.1


def test_a_node_that_is_silent_costs_its_group_the_round():
    with pytest.raises(SumFailed, match="any of them can bring that about"):
        summed({**{n: node(n) for n in (100, 101)}, 102: lambda message: []})


def test_a_strategy_runs_on_sums_and_an_attacker_is_excluded_for_what_its_groups_did(tmp_path):
    bad = 107
    nodes = {n: node(n, scale=-40.0 if n == bad else 1.0) for n in range(100, 112)}
    guarded = GuardedGroups(FedAvg(), Groups(size=2, seed=1), home=tmp_path, name="hidden")
    _, result = play(guarded, nodes, rounds=10)
    assert guarded.evidence.excluded == (str(bad),)
    moved = flatten(result.arrays) - flatten(model())
    np.testing.assert_allclose(moved, -1.0, atol=0.1)  # ten steps of the honest, as if nobody had attacked
    with Ledger(tmp_path) as ledger:
        records = ledger.records(ledger.runs()[-1].id)
    names = [set(record.client_ids) for record in records]
    assert names[0] == {str(n) for n in nodes}, "the ledger knows members, each with its group's numbers"
    assert len({*records[0].watches[0].scores.tolist()}) <= len(nodes) // 2
    assert any(note.kind == "groups_prove" and note.clients == (str(bad),) for r in records for note in r.notes)
    last = names[-1]
    assert last == {str(n) for n in nodes if n != bad}
    assert set(records[-1].reported["evaluate/acc"]) == last, "single nodes evaluate, but for the excluded"


def test_a_group_without_a_sum_is_told_and_nobody_is_blamed(tmp_path):
    nodes = {n: node(n) for n in range(100, 112)} | {105: lambda message: []}
    guarded = GuardedGroups(FedAvg(fraction_evaluate=0.0), Groups(size=3), home=tmp_path)
    _, result = play(guarded, nodes, rounds=2)
    assert guarded.record is not None
    (lost,) = [note for note in guarded.record.notes if note.kind == "no_sum"]
    assert "105" in lost.clients
    assert len(lost.clients) == 3
    assert guarded.record.rejected == ()
    assert not any(flag for round in guarded.evidence.rounds for _, flag in round)
    assert np.abs(flatten(result.arrays) - flatten(model()) + 0.2).max() < 0.1


def test_a_run_goes_on_with_its_evidence(tmp_path):
    nodes = {n: node(n, scale=-40.0 if n == 107 else 1.0) for n in range(100, 112)}
    options = {"home": tmp_path, "name": "cut", "resume": True}
    whole = GuardedGroups(FedAvg(), Groups(size=2, seed=1), home=tmp_path / "whole")
    play(whole, nodes, 4)

    def stop(t: int, arrays: ArrayRecord) -> None:
        if t == 3:
            raise KeyboardInterrupt

    first = GuardedGroups(FedAvg(), Groups(size=2, seed=1), **options)
    random.seed(0)
    with pytest.raises(KeyboardInterrupt):
        first.start(LocalGrid(nodes), model(), num_rounds=4, evaluate_fn=stop)
    second = GuardedGroups(FedAvg(), Groups(size=2, seed=1), **options)
    play(second, nodes, 4)
    assert second.evidence.rounds[:2] == whole.evidence.rounds[:2]
    assert len(second.evidence.rounds) == 4


def test_adapters_are_refused_since_a_mean_of_factors_has_other_products():
    with pytest.raises(ConfigError, match="a group shows a mean: use Guarded"):
        GuardedGroups(FedAvg(), adapters="lora")


def test_groups_of_one_are_refused():
    with pytest.raises(ValueError, match="2 or more"):
        GuardedGroups(FedAvg(), Groups(size=1))
