"""Seconds of one core to fold, combine and unfold low-rank adapters, a plain mean of the factors, and FedAvg.

python benchmarks/adapters.py
"""

import os
import time
from collections.abc import Callable

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # NumPy's threads would count while they wait

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy.strategy_utils import aggregate_arrayrecords

from fedwarden import Warden
from fedwarden.guard.adapters import Adapters


class Sent:
    """A reply."""

    def __init__(self, client: int, layers: list) -> None:
        self.client_id, self.layers, self.count = str(client), layers, 10.0


def best(run: Callable[[], object], times: int = 7) -> float:
    """The least seconds of a core of several runs: other programs on the machine count for nothing."""
    taken = []
    for _ in range(times):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def row(d: int, rank: int, n: int, pairs: int) -> str:
    """One row of the table: layers of this width, so many clients, and so many layers."""
    rng = np.random.default_rng(0)
    names = [f"{k}.lora_{letter}" for k in range(pairs) for letter in "AB"]
    shapes = [(rank, d), (d, rank)] * pairs
    model = [(rng.standard_normal(s) / (1 + 9 * (k % 2))).astype("f") for k, s in enumerate(shapes)]
    ranges = [(k * rank * d, (k + 1) * rank * d) for k in range(2 * pairs)]
    sent = [[(a + 0.01 * rng.standard_normal(a.shape)).astype("f") for a in model] for _ in range(n)]
    letters = [Sent(i, x) for i, x in enumerate(sent)]
    adapters, warden, shares = Adapters(), Warden.preset("auto").of_products(), np.full(n, 1 / n)
    records = [ArrayRecord(dict(zip(names, map(Array, x), strict=True))) for x in sent]
    contents = [RecordDict({"arrays": r, "metrics": MetricRecord({"num-examples": 10})}) for r in records]

    def exact() -> None:
        folded = adapters.fold(1, letters, names, model, ranges, {})
        folded.unfold(folded.cohort.updates.weighted_sum(shares))

    def guarded() -> None:
        folded = adapters.fold(1, letters, names, model, ranges, {})
        folded.unfold(warden.step(folded.cohort).update)

    mean = best(lambda: [sum(np.float32(1 / n) * x[k] for x in sent) for k in range(2 * pairs)])
    flower = best(lambda: aggregate_arrayrecords(contents, "num-examples"))
    took, whole = best(exact), best(guarded)
    times = [f"{1e3 * x:.1f}" for x in (mean, flower, took, whole)]
    return "| " + " | ".join(map(str, [d, rank, n, pairs, *times, f"{took / mean:.0f}", f"{took / flower:.1f}"])) + " |"


def main() -> None:
    torch.set_num_threads(1)
    names = "width, rank, clients, pairs, mean in ms, Flower's FedAvg, products, with auto, times mean, times FedAvg"
    print("| " + names.replace(", ", " | ") + " |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for case in ((384, 8, 8, 12), (384, 8, 8, 24), (1024, 8, 8, 24), (4096, 8, 8, 12), (4096, 16, 8, 12)):
        print(row(*case), flush=True)


if __name__ == "__main__":
    main()
