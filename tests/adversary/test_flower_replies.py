"""No reply ends a guarded Flower run, moves its model, or costs another client its place."""

import os
import random
import time
from contextlib import suppress

import numpy as np
import pytest
from flwr.app import Array, ConfigRecord, Message
from flwr.serverapp import strategy as flower

from fedwarden.flower import Guarded
from fedwarden.flower.records import view
from fedwarden.guard.arrays import Unfit
from fedwarden.guard.containment import level
from flower.conftest import quiet  # noqa: F401
from flower.nodes import (
    BAD,
    BASES,
    NODES,
    LocalGrid,
    close,
    content,
    first_message,
    honest,
    model,
    one_round,
    state,
    trained,
    training,
)

from .damage import TIMES
from .replies import CRAFTED, HARMLESS, Fuzzer, by_numpy, raw

BADS = range(200, 220)  # fuzzed nodes in a round beside the eight honest ones
HONEST = {str(node) for node in NODES}


def answering(node, data):
    """An honest node but for the bytes of one array."""
    return training(lambda message: {**trained(message, node), "fc.bias": raw(data)})


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_header_is_a_rejection(kind):
    crowd = {node: answering(node, CRAFTED[kind]) if node == BAD else honest(node) for node in NODES}
    guarded = Guarded(flower.FedAvg())
    arrays, _ = one_round(guarded, crowd)
    close(arrays, one_round(flower.FedAvg(), {n: honest(n) for n in NODES if n != BAD})[0])
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert str(rejection.reason).startswith("array 'fc.bias' ")
    assert set(guarded.record.client_ids) == HONEST - {str(BAD)}


@pytest.mark.parametrize("kind", HARMLESS)
def test_another_way_to_write_the_same_array_is_no_fault(kind):
    assert view(raw(HARMLESS[kind])).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_headers_are_understood_as_numpy_understands_them():
    """With any character of a header changed into any of a header's, it is refused or read with NumPy's numbers."""
    data = Array(np.random.default_rng(7).normal(size=(2, 3)).astype(np.float32)).data
    read = 0
    for place in range(10, 127):
        for letter in b"<>|=fiubTrueFals(){}, '0123468\n":
            changed = data[:place] + bytes([letter]) + data[place + 1 :]
            try:
                found = view(raw(changed))
            except Unfit:
                continue
            read += 1
            np.testing.assert_array_equal(found, by_numpy(changed))
    assert read > 100


class Fuzz:
    """Rounds of eight honest nodes and twenty fuzzed ones; what became of every fuzzed reply is counted."""

    def __init__(self, seed: int) -> None:
        self.fuzzer = Fuzzer(np.random.default_rng(seed))
        self.made = {node: trained(first_message(), node) for node in [*NODES, *BADS]}
        self.fair = {base: one_round(make(), {n: honest(n) for n in NODES})[0] for base, make in BASES.items()}
        self.sent = self.used = self.judged = self.evaluated = 0
        self.farthest = 0.0

    def round(self, base: str) -> None:
        """One round: the model is the strategy's own of those that are kept, and every honest node is among them."""
        originals: dict[int, dict[str, bytes]] = {}
        replies: dict[int, list[Message]] = {}

        def bad(node):
            def answer(message):
                self.sent += 1
                replies[node] = self.fuzzer.reply(message, self.made[node])
                with suppress(Exception):
                    (arrays,) = replies[node][0].content.array_records.values()
                    originals[node] = {k: a.data for k, a in arrays.items()}
                return replies[node]

            return answer

        def fair(node):
            return lambda m: [Message(content(self.made[node]), reply_to=m)]

        crowd = {node: fair(node) for node in NODES} | {node: bad(node) for node in BADS}
        guarded = Guarded(BASES[base]())
        arrays, _ = one_round(guarded, crowd)
        record = guarded.record
        weights = dict(zip(record.client_ids, record.weights.tolist(), strict=True))
        assert all(weights.get(client, 0) > 0 for client in HONEST), record.rejected
        assert not HONEST & {*record.excluded, *(r.client_id for r in record.rejected)}, record.rejected
        told = {r.client_id for r in record.rejected} | set(record.client_ids)
        assert told >= {str(node) for node in BADS}  # nobody is lost without a word
        kept = [node for node in BADS if weights.get(str(node), 0) > 0]
        self.used += len(kept)
        self.judged += sum(str(node) in weights for node in BADS)
        if not kept:
            return close(arrays, self.fair[base])

        # a node that answers twice is rejected once and judged once: a client was judged where it has a signal
        judged_ids = {c for c, x in zip(record.client_ids, record.watches[0].signal, strict=True) if not np.isnan(x)}
        sent = {node: self.made[node] for node in NODES} | {
            node: {name: by_numpy(originals[node][name]).astype(np.float32) for name in self.made[node]}
            for node in BADS
            if str(node) in judged_ids
        }
        start = state(first_message().content["arrays"])
        lengths = {n: np.sqrt(sum(float(((v - start[k]) ** 2).sum()) for k, v in a.items())) for n, a in sent.items()}
        judged = sorted(lengths.values())
        usual = judged[(len(judged) - 1) // 2]
        far = [lengths[node] for node in lengths if lengths[node] > 3.0 * usual and weights[str(node)] > 0]
        together = min(level(np.array(far), max(0.4 * len(judged), 3.0) * usual), 10.0 * usual)

        def alike(node):
            """An honest client that sent the same numbers."""
            count = {"num-examples": weights[str(node)]}
            given = replies[node][0].content["metrics"] if node in kept else {"train_loss": 0.5, "norm_bit": 1}
            metrics = {key: float(value) for key, value in given.items()}
            limit = together if lengths[node] > 3.0 * usual else 3.0 * usual
            factor = np.float32(min(1.0, limit / lengths[node]))
            arrays = {k: np.asarray(start[k] + factor * (v - start[k]), np.float32) for k, v in sent[node].items()}
            return lambda m: [Message(content(arrays, {**metrics, **count}), reply_to=m)]

        expected, _ = one_round(BASES[base](), {node: alike(node) for node in [*NODES, *kept]})
        close(arrays, expected)
        fair = state(self.fair[base])
        far = max(float(np.abs(value - fair[name]).max()) for name, value in state(arrays).items())
        self.farthest = max(self.farthest, far)
        return None

    def evaluation(self) -> None:
        """One evaluation: a number near the honest ones, whatever the others say."""
        guarded, grid = Guarded(flower.FedAvg()), LocalGrid({n: honest(n) for n in NODES})
        guarded.configure_train(1, model(), ConfigRecord(), grid)
        node = BADS[self.evaluated % len(BADS)]
        grid.nodes[node] = lambda m: self.fuzzer.reply(m, {})
        self.sent += 1
        self.evaluated += 1
        replies = grid.send_and_receive(guarded.configure_evaluate(1, model(), ConfigRecord(), grid))
        metrics = guarded.aggregate_evaluate(1, replies)
        # the liar's count is at most ten honest ones, and its accuracy at most ten times theirs
        assert abs(metrics["acc"] - 0.5) <= 10 / 18 * 5.5


def run(replies: int) -> Fuzz:
    seed = int(os.environ.get("FEDWARDEN_FUZZ_SEED", random.SystemRandom().randrange(2**32)))
    print(f"FEDWARDEN_FUZZ_SEED={seed}")
    began, fuzz = time.perf_counter(), Fuzz(seed)
    while fuzz.sent < replies:
        for base in BASES:
            try:
                fuzz.round(base)
            except BaseException as error:
                pytest.fail(f"{base}, after {fuzz.sent} replies, FEDWARDEN_FUZZ_SEED={seed}: {error!r}")
        try:
            for _ in range(20):
                fuzz.evaluation()
        except BaseException as error:
            pytest.fail(f"an evaluation, after {fuzz.sent} replies, FEDWARDEN_FUZZ_SEED={seed}: {error!r}")
    print(
        f"{fuzz.sent} replies ({fuzz.evaluated} evaluations) in {time.perf_counter() - began:.0f} s: "
        f"{fuzz.judged} judged as ordinary clients, {fuzz.used} of them kept; no crash, no model off the honest one, "
        f"the farthest by {fuzz.farthest:.2g} where such clients were kept"
    )
    return fuzz


@pytest.mark.parametrize("replies", [600, pytest.param(10_000 * TIMES, marks=pytest.mark.slow)])
def test_fuzzed_replies(replies):
    assert run(replies).used > 0
