"""What a strategy keeps between rounds survives its server, or is named."""

import random
from collections import Counter, deque
from functools import partial
from itertools import count
from threading import Lock

import numpy as np
import pytest
import torch
from flwr.serverapp import strategy as flower

from fedwarden.flower import Guarded
from fedwarden.flower.journal import fingerprint, fingerprints, pack, server_state, unpack
from fedwarden.store import checkpoint
from fedwarden.store.checkpoint import checkpoint_path
from fedwarden.store.ledger import Ledger

from .nodes import FragileGrid, Killed, LocalGrid, honest, model

NODES = range(100, 106)
CIRCLE = [1]
CIRCLE.append(CIRCLE)


Dying = partial(FragileGrid, dies_in=4)


class Accountant:
    """Remembers what was spent; no checkpoint knows how."""

    def __init__(self):
        self.spent = []


class Own(flower.FedAvg):
    """A strategy with state of every kind."""

    def __init__(self, step=1.0):
        super().__init__()
        self.step = step
        self.calls = 0
        self.momentum = np.zeros(2)
        self.past = []
        self.best = None
        self.by_node = {}
        self.accountant = Accountant()
        self.lock = Lock()
        self.log = random.Random(0)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.calls += 1
        self.momentum = 0.5 * self.momentum + self.calls
        self.past.append((server_round, "x" * server_round))
        self.best = b"\x00" + bytes([server_round])
        self.by_node[server_round] = {"mean": np.float32(server_round) / 3}
        self.accountant.spent.append(0.5)
        return arrays, metrics


def start(home, grid, strategy=None, rounds=5, **options):
    guarded = Guarded(strategy or Own(), name="own", home=home, **options)
    guarded.start(grid({node: honest(node) for node in NODES}), model(), rounds)
    return guarded


def kept(strategy):
    names = ("calls", "past", "best", "by_node")
    return {"momentum": strategy.momentum.tolist(), **{name: getattr(strategy, name) for name in names}}


def test_what_can_be_carried_is_and_the_rest_is_named_once(tmp_path, caplog):
    whole = start(tmp_path / "whole", LocalGrid)
    with pytest.raises(Killed):
        start(tmp_path / "cut", Dying)
    again = start(tmp_path / "cut", LocalGrid, Own(step=2.0), resume=True)
    assert again.done == 3
    assert kept(again.strategy) == kept(whole.strategy)
    assert type(again.strategy.by_node[1]["mean"]) is np.float32
    assert again.strategy.step == 2.0  # an option is the resumed server's own
    assert again.strategy.accountant.spent == [0.5, 0.5]  # and not five times, which is what is told
    with Ledger(tmp_path / "cut") as ledger:
        told = {r.round: [n for n in r.notes if "accountant" in str(n)] for r in ledger.records(1)}
    assert {t: len(notes) for t, notes in told.items()} == {1: 1, 2: 0, 3: 1, 4: 0, 5: 0}
    assert str(told[1][0]).startswith(
        "the strategy's attribute 'accountant' changed, and a resumed server starts with a"
    )
    assert str(told[3][0]).startswith("the strategy continues with a fresh attribute 'accountant'; a checkpoint")
    assert "'log'" not in str(told)  # it never changed
    assert "'lock'" not in str(told)


def test_attributes_of_a_wrapped_strategy_are_named_by_their_place(tmp_path):
    def wrapped():
        return flower.DifferentialPrivacyServerSideFixedClipping(
            Own(), noise_multiplier=1e-9, clipping_norm=1.0, num_sampled_clients=len(NODES)
        )

    with pytest.raises(Killed):
        start(tmp_path, Dying, wrapped())
    assert checkpoint.load(checkpoint_path(tmp_path, 1, 3))["lost"] == ["strategy.accountant"]
    again = start(tmp_path, LocalGrid, wrapped(), resume=True)
    assert again.strategy.strategy.calls == 5
    with Ledger(tmp_path) as ledger:
        assert any("'strategy.accountant'" in str(note) for note in ledger.record(1, 3).notes)


def test_flowers_own_strategies_lose_nothing(tmp_path):
    for base in (flower.FedAvg, flower.FedAvgM, flower.FedAdam, flower.FedYogi):
        start(tmp_path / base.__name__, LocalGrid, base(), rounds=2)
        assert set(checkpoint.load(checkpoint_path(tmp_path / base.__name__, 1, 2))) == {
            "round", "model", "warden", "names", "server",
        }  # fmt: skip


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2**80, -0.1, float("inf"), "text", b"", b"\x00\xff", [], (), {}, [1, (2, [3.0])],
        {"a": {1: None}, 2.5: (True,)}, {(1, "b"): "tuple as key"}, {"__tensor__": "no tensor"},
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_come_back_as_they_were(value, tmp_path):
    checkpoint.save(tmp_path / "c", {"value": pack(value)})
    again = unpack(checkpoint.load(tmp_path / "c")["value"])
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        Accountant(),
        {1, 2},
        deque([1]),
        Counter("a"),
        np.array(["text"]),
        np.array([1j]),
        random.Random(0),
        [Lock()],
        CIRCLE,
        torch.eye(2).to_sparse(),
        [np.zeros(1, ">f4")],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_carried_is_named(value):
    strategy = flower.FedAvg()
    before = fingerprints(strategy)
    strategy.odd = value
    strategy.even = 2
    carried, lost = server_state(strategy, before)
    assert lost == ["odd"]
    assert carried == {"even": {"value": 2}}


def changes():
    """Values, and how each is changed in place."""
    circle = [1]
    circle.append(circle)
    module = torch.nn.Linear(2, 1)
    return {
        "list": ([1, 2], lambda v: v.append(3)),
        "nested": ({"a": [{"b": 1}]}, lambda v: v["a"][0].update(b=2)),
        "array": (np.zeros(3), lambda v: v.fill(1)),
        "tensor": (torch.zeros(3), lambda v: v.fill_(1)),
        "scalar tensor": (torch.tensor(0.0, dtype=torch.bfloat16), lambda v: v.fill_(1)),
        "object": (Accountant(), lambda v: v.spent.append(1)),
        "set": ({1, 2}, lambda v: v.add(3)),
        "deque": (deque([1]), lambda v: v.append(2)),
        "counter": (count(), next),
        "generator": (np.random.default_rng(0), lambda v: v.random()),
        "random": (random.Random(0), lambda v: v.random()),
        "circle": (circle, lambda v: v.append(2)),
        "view": (np.zeros((4, 4))[:, ::2], lambda v: v.fill(1)),
        "model": (module, lambda v: v.weight.data.fill_(7)),
    }


@pytest.mark.parametrize("kind", changes())
def test_a_change_in_place_is_seen(kind):
    value, change = changes()[kind]
    before = fingerprint(value)
    assert fingerprint(value) == before
    change(value)
    assert fingerprint(value) != before


def test_what_cannot_be_taken_apart_is_known_by_identity():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    for value in (Lock(), deep, lambda: 1, (x for x in "ab"), fingerprint, np.mean, Accountant):
        assert fingerprint(value) == fingerprint(value)
    assert fingerprint(Lock()) != fingerprint(object())
