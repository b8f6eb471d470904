"""Adapters through Flower: ranks by node, factors that do not fit, and a run that goes on."""

import re

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import strategy as flower

from fedwarden.core.errors import ConfigError
from fedwarden.flower import Guarded
from fedwarden.guard.adapters import CUT

from .nodes import BAD, METRICS, NODES, LocalGrid, N, play, state, training

D_IN, D_OUT, RANK, LOW = 12, 9, 4, 101
A, B = "q.lora_A.weight", "q.lora_B.weight"


def lora(rank=RANK):
    rng = np.random.default_rng(0)
    arrays = {A: rng.normal(size=(rank, D_IN)), B: rng.normal(size=(D_OUT, rank)), "head": rng.normal(size=3)}
    return ArrayRecord({name: Array(np.asarray(a, np.float32)) for name, a in arrays.items()})


def node(number, change=lambda arrays: arrays, rank=RANK, seen=None):
    """A node that moves A, B and the head a little, from the best approximation where its rank is lower."""

    def arrays(message):
        sent = state(message.content.array_records["arrays"])
        if seen is not None:
            seen.append(sent[A].shape[0])
        if sent[A].shape[0] > rank:
            u, s, v = np.linalg.svd(product(sent))
            sent = {**sent, A: v[:rank], B: u[:, :rank] * s[:rank] * (rank / RANK)}
        rng = np.random.default_rng([number, 1])
        return change({k: np.asarray(v - 0.02 + 0.02 * rng.normal(size=v.shape), np.float32) for k, v in sent.items()})

    return training(arrays, METRICS)


def product(arrays):
    return RANK / len(arrays[A]) * arrays[B].astype(float) @ arrays[A]


def changed(**arrays):
    return lambda sent: {**sent, **{name: make(sent) for name, make in arrays.items()}}


BAD_FACTORS = {
    "NaN": (changed(**{A: lambda s: s[A] * np.float32(np.nan)}), "NaN, Inf or numbers too large"),
    "too large": (changed(**{B: lambda s: s[B] * np.float32(1e30)}), "NaN, Inf or numbers too large"),
    "no partner": (lambda s: {k: v for k, v in s.items() if k != B}, f"sent no array '{B}'"),
    "odd ranks": (changed(**{B: lambda s: s[B][:, :2]}), r"has shape \(9, 2\); expected \(9, 4\)"),
    "rank too high": (changed(**{A: lambda s: np.zeros((10, D_IN), np.float32)}), "rank 10; expected 1 to 9"),
    "no rows": (changed(**{A: lambda s: s[A][:0], B: lambda s: s[B][:, :0]}), "rank 0; expected 1 to 9"),
}


@pytest.mark.parametrize("kind", BAD_FACTORS)
def test_a_bad_factor_is_rejected_with_its_reason_and_the_round_goes_on(kind):
    change, says = BAD_FACTORS[kind]
    guarded = Guarded(flower.FedAvg(), adapters="lora")
    crowd = {n: node(n, change) if n == BAD else node(n) for n in NODES}
    _, result = play(guarded, crowd, rounds=1, arrays=lora())
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert re.search(says, str(rejection.reason))
    alone = Guarded(flower.FedAvg(), adapters="lora")
    _, expected = play(alone, {n: node(n) for n in NODES if n != BAD}, rounds=1, arrays=lora())
    for name, array in state(result.arrays).items():
        np.testing.assert_allclose(array, state(expected.arrays)[name], atol=1e-6)


def test_products_are_summed_exactly_and_a_node_of_lower_rank_is_sent_its_best_approximation():
    seen = []
    crowd = {n: node(n, rank=2, seen=seen) if n == LOW else node(n) for n in NODES}
    guarded = Guarded(flower.FedAvg(), adapters="lora")
    _, first = play(guarded, crowd, rounds=1, arrays=lora())
    found = state(first.arrays)
    dense = product(state(lora()))
    sent = {n: crowd_answer(crowd[n]) for n in NODES}
    start = np.linalg.svd(dense)
    low = (start[0][:, :2] * start[1][:2]) @ start[2][:2]
    total = dense + sum(product(a) - (low if n == LOW else dense) for n, a in sent.items()) / N
    best = np.linalg.svd(total)
    np.testing.assert_allclose(product(found), (best[0][:, :RANK] * best[1][:RANK]) @ best[2][:RANK], atol=1e-4)
    assert guarded.record.metrics[CUT] == pytest.approx(
        np.sqrt((best[1][RANK:] ** 2).sum() / (best[1] ** 2).sum()), rel=1e-3
    )
    assert not guarded.record.flagged.any()
    play(Guarded(flower.FedAvg(), adapters="lora"), crowd, rounds=2, arrays=lora())
    assert seen[-2:] == [RANK, 2]


def crowd_answer(answer):
    message = Message(RecordDict({"arrays": lora(), "config": ConfigRecord({"server-round": 1})}), 1, "train")
    return state(answer(message)[0].content.array_records["arrays"])


def test_the_rank_of_the_table_is_that_of_the_model():
    guarded = Guarded(flower.FedAvg(), adapters={"kind": "lora", "rank": 2})
    _, result = play(guarded, {n: node(n, rank=2) for n in NODES}, rounds=1, arrays=lora())
    assert state(result.arrays)[A].shape == (2, D_IN)


def test_what_cannot_go_together_is_refused():
    noisy = flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(), noise_multiplier=1.0, clipping_norm=1.0, num_sampled_clients=4
    )
    with pytest.raises(ConfigError, match="adds noise to the factors"):
        Guarded(noisy, adapters="lora")
    with pytest.raises(ConfigError, match="no pair of lora factors"):
        Guarded(flower.FedAvg(), adapters="lora").start(LocalGrid({}), ArrayRecord({"w": Array(np.ones(3))}), 1)
