"""The operator's word in a Flower server that runs: said between its rounds, obeyed from the next one on."""

import random
from functools import partial

import numpy as np
import pytest
from flwr.app import Message
from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import FedAvg

import fedwarden as fw
from fedwarden.cli import main
from fedwarden.flower import Guarded, GuardedGroups
from fedwarden.guard.groups import Groups
from fedwarden.store.ledger import Ledger
from fedwarden.store.recorder import standing
from fedwarden.store.round import RoundStory
from fedwarden.store.word import said_in, say

from .nodes import LocalGrid, content, honest, model, state
from .test_groups import node

NODES = range(100, 108)
DRIFTER = "103"


def drifting(message):
    """A node that attacks: it takes the honest step backwards."""
    if message.metadata.message_type == "evaluate":
        return honest(103)(message)
    rng = np.random.default_rng(int(message.content["config"]["server-round"]))
    arrays = state(message.content["arrays"])
    moved = {k: np.asarray(v + 0.1 + 0.02 * rng.normal(size=v.shape), np.float32) for k, v in arrays.items()}
    return [Message(content(moved), reply_to=message)]


class Operated(LocalGrid):
    """A grid beside which an operator speaks: before the server asks for the round after the one given."""

    def __init__(self, nodes, home, words):
        super().__init__(nodes)
        self.home, self.words, self.trained = home, words, {}

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        replies = super().send_and_receive(messages, timeout=timeout)
        if messages and messages[0].metadata.message_type == "train":
            t = len(self.trained) + 1
            self.trained[t] = {str(m.metadata.dst_node_id) for m in messages}
            with Ledger(self.home) as ledger:
                for kind, client in self.words.get(t, ()):
                    say(ledger, ledger.run().id, kind, client, "alice", "because")
        return replies


def crowd(attacker=True):
    return {n: drifting if attacker and str(n) == DRIFTER else honest(n) for n in NODES}


def play(guarded, home, words, rounds, nodes=None):
    random.seed(0)
    grid = Operated(nodes or crowd(), home, words)
    guarded.start(grid, model(), rounds)
    with Ledger(home) as ledger:
        run = ledger.run().id
        return grid, ledger.records(run), said_in(ledger, run)


def weight(record, client):
    return dict(zip(record.client_ids, record.weights.tolist(), strict=True)).get(client, 0.0)


def test_an_excluded_node_is_asked_neither_to_train_nor_to_evaluate_until_it_is_readmitted(tmp_path):
    words = {2: [("exclude", "105")], 4: [("readmit", "105")]}
    guarded = Guarded(flower.FedAvg(), home=tmp_path)
    grid, records, said = play(guarded, tmp_path, words, 6, crowd(attacker=False))
    assert ["105" in grid.trained[t] for t in range(1, 7)] == [True, True, False, False, True, True]
    assert ["105" in r.excluded for r in records] == [False, False, True, True, False, False]
    assert ["105" in r.reported["evaluate/acc"] for r in records] == [True, True, False, False, True, True]
    assert [(s.round, s.kind) for s in said] == [(3, "exclude"), (5, "readmit")]
    assert [(r.round, n.kind, n.clients, n.values["by"]) for r in records for n in r.notes if "word" in n.kind] == [
        (3, "word_excluded", ("105",), "operator alice"),
        (5, "word_readmitted", ("105",), "operator alice"),
    ]


@pytest.mark.parametrize("aggregator", [None, "mean"])
def test_a_trusted_node_is_in_the_model_and_out_again_when_trust_is_undone(tmp_path, aggregator):
    """Clients that hold alike data: a node in doubt is skipped for as long as the doubt lasts, unless it is trusted."""
    words = {1: [("trust", DRIFTER)], 6: [("untrust", DRIFTER)]}
    guarded = Guarded(flower.FedAvg(), fw.Warden.preset("auto", alike=True), home=tmp_path, aggregator=aggregator)
    _, records, _ = play(guarded, tmp_path, words, 9)
    assert not any(RoundStory(r).in_doubt.get(DRIFTER) for r in records[1:6])
    assert all(weight(r, DRIFTER) == pytest.approx(1 / 8, rel=0.01) and not r.excluded for r in records[1:6])
    assert records[5].flagged[records[5].client_ids.index(DRIFTER)]
    assert all(weight(r, DRIFTER) == 0 for r in records[6:])


def test_while_observing_no_node_is_left_out(tmp_path):
    words = {5: [("observe", "")], 7: [("enforce", "")]}
    guarded = Guarded(flower.FedAvg(), fw.Warden.preset("auto", alike=True), home=tmp_path)
    _, records, _ = play(guarded, tmp_path, words, 9)
    assert [weight(r, DRIFTER) == 0 for r in records[4:]] == [True, False, False, True, True]
    assert all(r.flagged[r.client_ids.index(DRIFTER)] for r in records[5:7])


def test_a_server_that_goes_on_obeys_what_was_said_meanwhile(tmp_path):
    class Stopped(BaseException):
        """Stands for kill -9."""

    class Dying(Operated):
        def send_and_receive(self, messages, *, timeout=None):
            if len(self.trained) == 3:
                raise Stopped
            return super().send_and_receive(messages, timeout=timeout)

    guarded = Guarded(flower.FedAvg(), home=tmp_path, name="wards")
    with pytest.raises(Stopped):
        guarded.start(Dying(crowd(False), tmp_path, {2: [("exclude", "101")]}), model(), 5)
    with Ledger(tmp_path) as ledger:
        say(ledger, 1, "exclude", "102", "alice", "")
        say(ledger, 1, "readmit", "101", "alice", "")
    again = Guarded(flower.FedAvg(), home=tmp_path, name="wards", resume=True)
    _, records, said = play(again, tmp_path, {}, 5, crowd(False))
    assert [(s.round, s.client) for s in said] == [(3, "101"), (4, "102"), (4, "101")]
    assert [r.excluded for r in records] == [(), (), ("101",), ("102",), ("102",)]


def test_a_secure_sum_is_without_an_excluded_node(tmp_path):
    words = {1: [("exclude", "105")], 3: [("readmit", "105"), ("trust", "104"), ("observe", "")]}
    nodes = {n: node(n) for n in NODES}
    guarded = GuardedGroups(FedAvg(), Groups(size=2, seed=1), home=tmp_path)
    with_operator = _operated(guarded, tmp_path, words)
    with_operator.start(LocalGrid(nodes), model(), num_rounds=5)
    with Ledger(tmp_path) as ledger:
        records, said = ledger.records(1), said_in(ledger, 1)
    assert ["105" in r.client_ids for r in records] == [True, False, False, True, True]
    assert ["105" in r.excluded for r in records] == [False, True, True, False, False]
    assert {s.round for s in said} == {2, 4}
    assert with_operator.word.observing
    assert all((r.weights > 0).all() for r in records)


def _operated(guarded, home, words):
    """The same, and an operator who speaks once a round is recorded."""
    commit = guarded._commit

    def after(record, arrays):
        commit(record, arrays)
        with Ledger(home) as ledger:
            for kind, client in words.get(record.round, ()):
                say(ledger, 1, kind, client, "alice", "")

    guarded._commit = after
    return guarded


@pytest.mark.parametrize("wrap", [Guarded, partial(GuardedGroups, groups=Groups(2, colluders=0.1))])
def test_what_an_earlier_run_left_waits_until_its_node_joins(tmp_path, wrap, capsys):
    """A node that is excluded is asked in no round, not even in that in which it joins; one that is away has none."""
    with Ledger(tmp_path) as ledger:
        ledger.start("before", "flower", {}, {})
        for client in (DRIFTER, "999"):
            say(ledger, 1, "exclude", client, "alice", "stolen key")
    members = {n: node(n) if wrap is not Guarded else honest(n) for n in NODES}
    late = members.pop(int(DRIFTER))

    class Joining(Operated):
        def send_and_receive(self, messages, *, timeout=None):
            replies = super().send_and_receive(messages, timeout=timeout)
            if len(self.trained) == 1:
                self.nodes[int(DRIFTER)] = late
            return replies

    random.seed(0)
    grid = Joining(members, tmp_path, {})
    warden = fw.Warden.preset("auto", standing="before")
    wrap(FedAvg(min_available_nodes=2, min_train_nodes=2), warden=warden, home=tmp_path).start(grid, model(), 3)
    with Ledger(tmp_path) as ledger:
        records, said = ledger.records(2), said_in(ledger, 2)
        left = standing(ledger, 2)
    assert [r.excluded for r in records] == [(), (DRIFTER,), (DRIFTER,)]
    assert all(("train", int(DRIFTER)) != asked for asked in grid.asked)
    assert [(s.client, s.round) for s in said] == [(DRIFTER, 2), ("999", None)]
    told = [(r.round, str(n)) for r in records for n in r.notes if n.kind.startswith("word_")]
    why = f"client {DRIFTER} is excluded until it is readmitted (run 1: by operator alice from the end on: stolen key)"
    assert told == [(2, why)]
    assert [entry[1] for entry in left] == [DRIFTER, "999"]  # the run after it may meet it
    assert main(["show", "2", "--home", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "999" not in out
    assert "1 client known from an earlier run has not joined." in out
    assert main(["readmit", "2", "999", "--home", str(tmp_path)]) == 2  # the run is done
