"""What a server holds at a time, counted in models of 4 d bytes."""

import gc
import tracemalloc

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from fedwarden.flower import Guarded

from .nodes import METRICS, LocalGrid, evaluated

LAYERS, SIZE = 10, 100_000


def rounds(strategy, n, size):
    """Three rounds of a model of some layers; every third client's update is long enough to be shortened."""
    rng = np.random.default_rng(0)

    def answer(message):
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        by = np.float32(0.5 if message.metadata.dst_node_id % 3 == 0 else 0.01)
        made = ArrayRecord()
        for name, array in message.content.array_records["arrays"].items():  # no model is held twice here
            made[name] = Array(array.numpy() + by * rng.random(size, np.float32))
        return [Message(RecordDict({"arrays": made, "metrics": MetricRecord(METRICS)}), reply_to=message)]

    model = ArrayRecord({f"layer{i}": Array(rng.random(size, np.float32)) for i in range(LAYERS)})
    strategy.start(LocalGrid(dict.fromkeys(range(2, n + 2), answer)), model, num_rounds=3)


def peak(strategy, n, size=SIZE):
    """Models at the peak."""
    gc.collect()
    tracemalloc.start()
    try:
        rounds(strategy, n, size)
        return tracemalloc.get_traced_memory()[1] / (4 * LAYERS * size)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("n", "more"), [(2, 2.0), (8, 0.0)])
def test_a_guard_holds_at_most_two_models_beyond_flower_and_none_with_eight_clients(tmp_path, n, more):
    peak(Guarded(FedAvg(), home=tmp_path), n, SIZE // 5)  # loads and compiles what is loaded once
    assert peak(Guarded(FedAvg(), home=tmp_path), n) <= peak(FedAvg(), n) + more
