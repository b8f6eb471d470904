"""Nodes that name themselves: the name appears everywhere, and nobody takes another's."""

import pytest
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flower

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.core.notes import Note
from fedwarden.flower import Guarded
from fedwarden.flower.names import Names
from fedwarden.store.ledger import Ledger

from .nodes import BAD, NODES, LocalGrid, content, model, one_round, trained

KEY = "partition-id"


def named(node, value, record="metrics"):
    """A node that tells a name beside its metrics, or in a config record of its own."""

    def answer(message):
        metrics = {"num-examples": 10, "loss": 0.5}
        if record == "metrics" and value is not None:
            metrics[KEY] = value
        if message.metadata.message_type == "evaluate":
            return [Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)]
        found = content(trained(message, node), metrics)
        if record == "config" and value is not None:
            found["about"] = ConfigRecord({KEY: value})
        return [Message(found, reply_to=message)]

    return answer


def turn(guarded, grid, t):
    guarded.aggregate_train(t, grid.send_and_receive(guarded.configure_train(t, model(), ConfigRecord(), grid)))


@pytest.mark.parametrize("record", ["metrics", "config"])
def test_a_name_appears_in_the_record(record):
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    one_round(guarded, {node: named(node, node - 100, record) for node in NODES})
    assert sorted(guarded.record.client_ids) == [str(i) for i in range(len(NODES))]
    assert guarded.record.notes == ()
    assert f"train/{KEY}" not in guarded.record.reported
    assert set(guarded.record.reported["train/loss"]) == set(guarded.record.client_ids)


def test_words_are_cut_and_printable():
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    one_round(guarded, {node: named(node, f"\x1b[2J{node}" + 100 * "x", "config") for node in NODES})
    for client in guarded.record.client_ids:
        assert len(client) == 40
        assert client.isprintable()


@pytest.mark.parametrize("call", ["<!channel>", "@everyone", "[log in](https://x.y)", "<https://x.y|log in>", "`rm`"])
def test_a_name_calls_nobody_and_leads_nowhere(call):
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    one_round(guarded, {node: named(node, f"site {node} {call}", "config") for node in NODES})
    for client in guarded.record.client_ids:
        assert client.startswith("site ")
        assert not set("<>@[]()|/`") & set(client)


@pytest.mark.parametrize("first", [True, False], ids=["the liar first", "the liar last"])
def test_nobody_takes_a_name_that_another_has(first):
    """Who says it first keeps it, in all later rounds too; the other one goes by its number, and both are told of."""
    victim = NODES[0]
    nodes = {node: named(node, node - 100) for node in NODES}
    nodes[BAD] = named(BAD, victim - 100)
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    grid = LocalGrid(nodes)
    for t in (1, 2):
        sent = list(guarded.configure_train(t, model(), ConfigRecord(), grid))
        replies = sorted(grid.send_and_receive(sent), key=lambda m: (m.metadata.src_node_id != BAD) == first)
        guarded.aggregate_train(t, replies)
        other = victim if first else BAD
        assert str(other) in guarded.record.client_ids
        assert len(set(guarded.record.client_ids)) == len(NODES)
        assert guarded.record.notes == ((Note.of("name_taken", str(other), name="0"),) if t == 1 else ())


@pytest.mark.parametrize(
    "twin", ["SITE 1", "site\u00a01", "site 1\ufe0f", "site\u3164 1", "\uff53ite 1", "si\u034fte 1"]
)
def test_nobody_takes_a_name_that_looks_like_anothers(twin):
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    grid = LocalGrid({100: named(100, "site 1", "config"), 101: named(101, twin, "config")})
    guarded.strategy.min_train_nodes = guarded.strategy.min_available_nodes = 2
    turn(guarded, grid, 1)
    assert sum(name.isdecimal() for name in guarded.record.client_ids) == 1
    assert [note.kind for note in guarded.record.notes].count("name_taken") == 1


def test_nobody_is_called_by_the_number_of_a_node_that_is_asked():
    """Node 104 says that it is 105, poisons, and 105 would be excluded for it."""
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    one_round(guarded, {node: named(node, "105" if node == 104 else None, "config") for node in NODES})
    assert sorted(guarded.record.client_ids) == [str(node) for node in NODES]
    others = (str(node) for node in NODES if node != BAD)
    assert guarded.record.notes == (Note.of("name_taken", "104", name="105"), Note.of("name_missing", *others, key=KEY))


def test_a_number_that_was_taken_as_a_name_gets_another():
    names = Names(KEY)
    first, second = (
        Message(RecordDict({"about": ConfigRecord({KEY: "7"})}), dst_node_id=1, message_type="train") for _ in "ab"
    )
    names.learn(3, first, asked=(3,))
    names.learn(7, second, asked=(3, 7))
    assert [names(3), names(7)] == ["7", "node 7"]


@pytest.mark.parametrize("value", [10**400, float("nan"), float("inf"), True, [1.0, 2.0], b"site", "", " ", "\u3164"])
def test_what_is_no_name_ends_nothing(value):
    class Odd(ConfigRecord):
        def get(self, key, default=None):
            return value if key == KEY else default

    reply = Message(RecordDict({"about": Odd({"x": 1})}), dst_node_id=1, message_type="train")
    names = Names(KEY)
    assert names.learn(BAD, reply) == Note.of("name_missing", str(BAD), key=KEY)
    assert names(BAD) == str(BAD)


def test_nobody_takes_the_number_of_another():
    number = "12345678901234567890"
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    one_round(guarded, {node: named(node, number if node == BAD else None, "config") for node in NODES})
    assert str(BAD) in guarded.record.client_ids
    assert [note.kind for note in guarded.record.notes] == ["name_taken", "name_missing"]


def test_a_node_keeps_its_first_name():
    """Else it could leave what was found of it behind."""
    said = iter(["a", "b", "c"])
    nodes = {node: named(node, str(node), "config") for node in NODES}
    nodes[BAD] = lambda message: named(BAD, next(said), "config")(message)
    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    grid = LocalGrid(nodes)
    for t in (1, 2, 3):
        turn(guarded, grid, t)
        assert "a" in guarded.record.client_ids


def test_an_error_settles_no_name():
    broken = {"now": True}

    def late(message):
        return [Message(Error(0, "boom"), reply_to=message)] if broken["now"] else named(BAD, "late", "config")(message)

    guarded = Guarded(flower.FedAvg(), client_name=KEY)
    grid = LocalGrid({node: late if node == BAD else named(node, str(node), "config") for node in NODES})
    for t in (1, 2):
        turn(guarded, grid, t)
        broken["now"] = False
    assert "late" in guarded.record.client_ids


def test_names_that_carry_a_right_are_not_for_nodes_to_choose():
    """Whoever says "hospital-a" first would hold half of the model."""
    warden = fw.Warden.preset("auto")
    warden.admission = fw.Admission(shares={"hospital-a": 0.55})
    with pytest.raises(ConfigError, match="any node could claim to be hospital-a"):
        Guarded(flower.FedAvg(), warden, client_name=KEY)
    with pytest.raises(ConfigError, match="'trusted'"):
        Guarded(flower.FedAvg(), fw.Warden.preset("auto", trusted=["Basel"]), client_name=KEY)
    Guarded(flower.FedAvg(), warden, client_name=lambda node: f"hospital-{node}")


def test_names_live_on_when_a_server_is_started_again(tmp_path):
    nodes = {node: named(node, f"site {node}", "config") for node in NODES}
    for rounds in (1, 3):
        guarded = Guarded(flower.FedAvg(), client_name=KEY, home=tmp_path, resume=True)
        if rounds == 1:  # killed before the second round
            guarded.strategy.configure_evaluate = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                guarded.start(LocalGrid(nodes), model(), num_rounds=3)
            nodes = {node: named(node, f"other {node}", "config") for node in NODES}
        else:
            guarded.start(LocalGrid(nodes), model(), num_rounds=3)
    with Ledger(tmp_path) as ledger:
        records = ledger.records(1)
    assert [r.round for r in records] == [1, 2, 3]
    for record in records:
        assert set(record.client_ids) == {f"site {node}" for node in NODES}
