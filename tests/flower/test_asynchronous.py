"""Nodes of different speed on a grid with a clock of its own: buffers, stale and late updates, attackers, a kill."""

import random
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message
from flwr.serverapp.strategy import FedAvg

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.flower import Asynchronous, grid
from fedwarden.store.ledger import Ledger

from .nodes import Killed, LocalGrid, content, honest, model, state

PLAIN = {"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1}


class Clock(SimpleNamespace):
    """A clock that only sleep moves."""

    now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class SlowGrid(LocalGrid):
    """Each node answers so many seconds after it was asked, with what it makes of the model that it was sent."""

    def __init__(self, nodes, seconds, clock, dies_at=None, queues=False):
        super().__init__(nodes)
        self.seconds, self.clock, self.due, self.dies_at = seconds, clock, {}, dies_at
        self.pushes, self.queues, self.ends = [], queues, {node: [] for node in nodes}

    def done(self, node, now):
        """How many messages a node has answered."""
        return sum(end <= now for end in self.ends[node])

    def push_messages(self, messages):
        numbers = []
        for message in messages:
            number = f"m{next(self.numbers)}"
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            self.pushes.append((self.clock.now, node))
            begins = max([self.clock.now, *(self.ends[node] if self.queues else [])])
            self.ends[node].append(begins + self.seconds[node])
            self.due[number] = (self.ends[node][-1], self.nodes[node](message))
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids):
        if self.dies_at is not None and self.clock.now >= self.dies_at:
            raise Killed
        ready = [n for n in message_ids if n in self.due and self.due[n][0] <= self.clock.now]
        return [reply for n in ready for reply in self.due.pop(n)[1]]


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(grid, "time", found)
    monkeypatch.setattr(grid, "QUICK", 1.0)
    return found


def play(guarded, clock, nodes, seconds, rounds, timeout=1000.0, **more):
    random.seed(0)
    grid = SlowGrid(nodes, seconds, clock, **more)
    return grid, guarded.start(grid, model(), rounds, timeout)


def stepping(by, node=0):
    """A node that moves every parameter by so much from the model that it was sent."""

    def answer(message):
        sent = state(message.content["arrays"])
        return [Message(content({k: np.asarray(v + by, np.float32) for k, v in sent.items()}), reply_to=message)]

    return answer


def test_a_buffer_is_folded_as_fedbuff_does(clock):
    """Two nodes, one three times as slow, buffers of one: by hand, with s(a) = 1 / sqrt(1 + a) and rate 1."""
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=1, warden="none", rate=1.0)
    nodes = {7: stepping(1.0), 8: stepping(10.0)}
    _, result = play(guarded, clock, nodes, {7: 2.0, 8: 7.0}, 5)
    # round 1 waits for both nodes (half a window is more than that): 7 s, mean 5.5. Then node 7 answers at 9, 11
    # and 13 s, and node 8, sent the same model, at 14 s: three folds later
    fresh, stale = 3 * 1.0, 10.0 / np.sqrt(1 + 3)
    moved = state(result.arrays)["fc.bias"] - state(model())["fc.bias"]
    np.testing.assert_allclose(moved, 5.5 + fresh + stale, rtol=1e-5)
    told = [r.reported["reply/staleness"] for r in guarded.warden.recent]
    assert told == [{"7": 0.0, "8": 0.0}, *[{"7": 0.0}] * 3, {"8": 3.0}]


def test_nodes_at_work_are_not_asked_again(clock):
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=2, warden="none")
    seconds = dict(zip(range(100, 108), (1, 2, 3, 5, 8, 13, 21, 34), strict=True))
    grid, _ = play(guarded, clock, {n: honest(n) for n in seconds}, seconds, 12)
    for node, wait in seconds.items():
        asked = [when for when, who in grid.pushes if who == node]
        assert all(b - a >= wait for a, b in pairwise(asked))
    assert len([1 for _, who in grid.pushes if who == 100]) > len([1 for _, who in grid.pushes if who == 107])


def test_what_comes_after_it_was_given_up_is_rejected_with_its_reason(clock):
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=4, warden="none")
    seconds = dict.fromkeys(range(100, 108), 2.0) | {100: 15.0}
    _, result = play(guarded, clock, {n: honest(n) for n in seconds}, seconds, 12, timeout=10.0)
    reasons = [(r.client_id, r.reason.kind) for record in guarded.warden.recent for r in record.rejected]
    assert set(reasons) == {("100", "no_answer"), ("100", "model_gone")}
    assert result.arrays


def test_a_node_that_is_slower_than_its_timeout_does_not_fall_further_behind(clock):
    """Nodes work on one message after another; node 100 needs 25 s, and is given up after 10."""
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=2, warden="none")
    nodes = {n: honest(n) for n in range(100, 104)}
    grid, _ = play(guarded, clock, nodes, dict.fromkeys(nodes, 2.0) | {100: 25.0}, 120, timeout=10.0, queues=True)
    asked = [when for when, node in grid.pushes if node == 100]
    given = [when + 10 for when in asked]
    unanswered = [sum(when <= now for when in asked) - grid.done(100, now) for now in given]
    assert len(asked) > 4
    assert max(unanswered) <= 2  # asked again after 20 s, when it still works on the first message, and not again
    late = [r.round for r in guarded.warden.recent for x in r.rejected if x.reason.kind == "model_gone"]
    assert len(late) >= len(asked) - 3  # the others are at work, or were not looked for again


def test_where_all_nodes_are_too_slow_no_rounds_are_burnt_while_nobody_can_be_asked(clock):
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=2, warden="none")
    nodes = {n: honest(n) for n in range(100, 104)}
    play(guarded, clock, nodes, dict.fromkeys(nodes, 15.0), 6, timeout=10.0)
    assert clock.now >= 3 * 15.0  # a round for those that did not answer, and one for those that were late
    reasons = [{x.reason.kind for x in r.rejected} for r in guarded.warden.recent]
    assert reasons == [{"no_answer"}, {"model_gone"}] * 3


def test_the_error_of_a_node_that_was_given_up_is_told_as_it_is(clock):
    def dies(message):
        return [Message(Error(code=1, reason="node gone"), reply_to=message)]

    guarded = Asynchronous(FedAvg(**PLAIN), buffer=2, warden="none")
    nodes = {n: honest(n) for n in range(100, 104)} | {100: dies}
    play(guarded, clock, nodes, dict.fromkeys(nodes, 2.0) | {100: 15.0}, 12, timeout=10.0)
    told = [str(x.reason) for r in guarded.warden.recent for x in r.rejected if x.client_id == "100"]
    assert told[:2] == ["did not answer in time", "failed: node gone"]


def test_a_dead_node_costs_no_round_and_fills_no_buffer(clock):
    def dead(message):
        return [Message(Error(code=1, reason="node gone"), reply_to=message)]

    guarded = Asynchronous(FedAvg(**PLAIN), buffer=3, warden="none")
    nodes = {n: honest(n) for n in range(100, 108)} | {103: dead}
    play(guarded, clock, nodes, dict.fromkeys(nodes, 2.0) | {103: 1.0}, 6)
    records = guarded.warden.recent
    assert [len(r.client_ids) for r in records] == [7, 3, 3, 3, 3, 3]
    assert {r.client_id for record in records for r in record.rejected} == {"103"}


@pytest.mark.parametrize("buffer", [1, 4])
def test_an_attacker_is_found_among_nodes_of_any_speed(clock, buffer):
    def backwards(message):
        """The honest step with its sign flipped."""
        sent = state(message.content["arrays"])
        [reply] = honest(105)(message)
        arrays = {k: np.asarray(2 * sent[k] - v, np.float32) for k, v in state(reply.content["arrays"]).items()}
        return [Message(content(arrays), reply_to=message)]

    nodes = {n: honest(n) for n in range(100, 112)} | {105: backwards}
    seconds = {n: float(2 + i) for i, n in enumerate(nodes)}
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=buffer, warden=fw.Warden.preset("auto", alike=True))
    play(guarded, clock, nodes, seconds, 80 // buffer)
    skipped = {c for r in guarded.warden.recent for c, w in zip(r.client_ids, r.weights, strict=True) if w == 0}
    assert skipped == {"105"}


def test_a_server_that_was_killed_continues_with_its_window(clock, tmp_path):
    nodes = {n: honest(n) for n in range(100, 108)}
    seconds = {n: float(1 + i) for i, n in enumerate(nodes)}

    def fresh():
        return Asynchronous(FedAvg(**PLAIN), buffer=1, name="killed", home=tmp_path, resume=True)

    with pytest.raises(Killed):
        play(fresh(), clock, nodes, seconds, 20, dies_at=14.0)
    guarded = fresh()
    play(guarded, clock, nodes, seconds, 20)
    with Ledger(tmp_path) as ledger:
        assert [r.round for r in ledger.records(1)] == [*range(1, 21)]
    assert len(guarded.window.entries) == 8
    first = guarded.warden.recent[0]
    assert first.round > 1
    assert len(first.client_ids) == 1  # judged beside the window of before, not in a round of all


def test_wrong_buffers_and_jurors_are_refused():
    with pytest.raises(ConfigError, match="buffer >= 1"):
        Asynchronous(FedAvg(), buffer=0)
    with pytest.raises(ConfigError, match="jurors"):
        Asynchronous(FedAvg(), warden=fw.Warden.preset("auto", jurors=["1", "2", "3"]))


def test_counters_and_running_statistics_pass_through_buffers(clock):
    """Buffers of one: what is not measured has other types, and moves with the clients'."""
    start = {"bn.weight": np.ones(6, np.float32), "bn.running_mean": np.zeros(6, np.float32)}
    start["bn.num_batches_tracked"] = np.array(0, np.int64)

    def node(number):
        def answer(message):
            sent = state(message.content["arrays"])
            rng = np.random.default_rng(number)
            made = {"bn.weight": np.asarray(sent["bn.weight"] + 0.1 + 0.01 * rng.normal(size=6), np.float32)}
            made["bn.running_mean"] = np.full(6, 2.0, np.float32)
            made["bn.num_batches_tracked"] = np.asarray(sent["bn.num_batches_tracked"] + 10)
            return [Message(content(made), reply_to=message)]

        return answer

    random.seed(0)
    nodes = {n: node(n) for n in range(100, 108)}
    guarded = Asynchronous(FedAvg(**PLAIN), buffer=1)
    grid = SlowGrid(nodes, {n: float(1 + i) for i, n in enumerate(nodes)}, clock)
    result = guarded.start(grid, ArrayRecord({k: Array(np.asarray(v)) for k, v in start.items()}), 40, 1000.0)
    made = state(result.arrays)
    assert not any(record.rejected for record in guarded.warden.recent)
    assert made["bn.num_batches_tracked"].dtype == np.int64
    assert 1.0 < made["bn.running_mean"].mean() < 3.0
