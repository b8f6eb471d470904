"""Layers that stay at the clients: not judged, not combined, and the server's values are kept bit for bit."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower

from fedwarden.core.errors import ConfigError
from fedwarden.flower import Guarded

from .nodes import BAD, BASES, NODES, LocalGrid, bad, close, play, state, training

SHAPES = {"body.weight": (4, 3), "body.bias": (4,), "head.weight": (2, 4), "head.bias": (2,), "head.seen": ()}


def model(kind=np.float32):
    rng = np.random.default_rng(0)
    arrays = {k: np.asarray(rng.normal(size=s), kind) for k, s in SHAPES.items()} | {"head.seen": np.asarray(7)}
    return ArrayRecord({k: Array(v) for k, v in arrays.items()})


def node(number, head=lambda a: a + 5.0, drop=False):
    """A node that trains its body as others do, and whose head goes its own way or stays at home."""

    def arrays(message):
        rng, sent = np.random.default_rng(number), state(message.content["arrays"])
        made = {k: np.asarray(v + 0.1 + 0.02 * rng.normal(size=v.shape), v.dtype) for k, v in sent.items()}
        own = {} if drop else {k: np.asarray(head(v)) for k, v in sent.items() if k.startswith("head")}
        return {k: v for k, v in made.items() if k.startswith("body")} | own

    return training(arrays)


def run(crowd, base="FedAvg", rounds=2, kind=np.float32, **options):
    guarded = Guarded(BASES[base](), **{"personal": ["head.*"], **options})
    result = guarded.start(LocalGrid(crowd), model(kind), num_rounds=rounds)
    return guarded, result.arrays


@pytest.mark.parametrize("base", [b for b in BASES if b not in ("QFedAvg", "DP client fixed", "DP client adaptive")])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_servers_values_are_kept_bit_for_bit(base, kind):
    """Also by strategies with momenta, and by those that add noise to all of a model."""
    crowd = {n: node(n, lambda a, n=n: a + n) for n in NODES}
    guarded, arrays = run(crowd, base, kind=kind)
    assert guarded.record.rejected == ()
    got, want = state(arrays), state(model(kind))
    assert list(arrays) == list(SHAPES)
    for name in SHAPES:
        same = (got[name] == want[name]).all()
        assert same if name.startswith("head") else not same, name


ODD = {
    "another head in each": {},
    "no head at all": {"drop": True},
    "nan": {"head": lambda a: a * np.nan},
    "huge": {"head": lambda a: np.full(np.shape(a), 1e30)},
    "another shape": {"head": lambda a: np.ones(3)},
    "text": {"head": lambda a: np.array(["a"])},
    "int8 without a scale": {"head": lambda a: np.ones(np.shape(a), np.int8)},
}


@pytest.mark.parametrize("aggregator", [None, "mean"])
@pytest.mark.parametrize("kind", ODD)
def test_whatever_a_client_sends_in_such_a_layer_changes_nothing(kind, aggregator):
    plain = {n: node(n) for n in NODES}
    want = run(plain, aggregator=aggregator)[1]
    guarded, arrays = run(plain | {BAD: node(BAD, **ODD[kind])}, aggregator=aggregator)
    assert guarded.record.rejected == ()
    close(arrays, want)


def test_a_head_alone_suspends_nobody_and_a_body_is_judged_as_ever():
    """Five heads that point away from the others', every round; and one body that does."""
    heads = {n: node(n, lambda a, n=n: a - 50.0 * (n % 2)) for n in NODES}
    guarded, _ = run(heads, rounds=12)
    assert not any(record.flagged.any() for record in guarded.warden.recent)
    away = training(
        lambda message: {k: np.asarray(v - 1.0, v.dtype) for k, v in state(message.content["arrays"]).items()}
    )
    guarded, _ = run(heads | {BAD: away}, rounds=12)
    assert any(record.flagged.any() for record in guarded.warden.recent)


def test_scales_of_such_a_layer_stay_too():
    """A client that quantises all of its model sends int8 with scales for the head."""
    crowd = {n: node(n) for n in NODES}
    inner = crowd[BAD]

    def quantised(message):
        replies = inner(message)
        if message.metadata.message_type == "train":
            record = replies[0].content["arrays"]
            record["head.weight"] = Array(np.ones((2, 4), np.int8))
            record["head.weight.scale"] = Array(np.asarray(0.0))
        return replies

    guarded, arrays = run(crowd | {BAD: quantised})
    assert guarded.record.rejected == ()
    close(arrays, run(crowd)[1])


def test_a_pattern_that_names_no_array_and_a_model_with_nothing_to_share_are_refused():
    crowd = {n: node(n) for n in NODES}
    with pytest.raises(
        ConfigError, match=r"personal: no array of the model is 'haed\.weight'; did you mean 'head.weight'"
    ):
        run(crowd, personal=["haed.weight"])
    with pytest.raises(ConfigError, match="no floating-point array to share"):
        run(crowd, personal="*")


def test_one_bad_body_is_rejected_as_ever():
    strategy = Guarded(flower.FedAvg(), personal="scale")
    play(strategy, {n: bad("nan" if n == BAD else "another order", n) for n in NODES}, rounds=1)
    assert {r.client_id for r in strategy.record.rejected} == {str(BAD)}
