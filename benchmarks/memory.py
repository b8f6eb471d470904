"""The memory of a Flower server, plain and guarded: peak resident size of a process of its own, in models of 4 d bytes.

python benchmarks/memory.py                        1 M and 20 M parameters; some minutes, 5 GB of memory
python benchmarks/memory.py --parameters 100e6     one size; 13 GB
"""

from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from common import at_most, machine, show
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedwarden.flower import Guarded
from guard import forget_peak, resident

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.nodes import LocalGrid, evaluated

LAYERS, ROUNDS = 20, 4
BAR = 2.0  # models beyond Flower's
STRATEGIES = {"FedAvg": FedAvg, "FedAdam": FedAdam}


def model(d: int, rng: np.random.Generator, start: dict[str, Any] | None = None, by: float = 0.01) -> ArrayRecord:
    """A model of some layers, or one near another."""
    made = ArrayRecord()
    for name in (f"layer{i}" for i in range(LAYERS)):
        part = rng.standard_normal(d // LAYERS, np.float32)
        made[name] = Array(part if start is None else start[name].numpy() + np.float32(by) * part)
    return made


def run(kind: str, base: str, n: int, d: int, home: str) -> None:
    """A few rounds, alone or guarded with ledger and checkpoints; every third update is long enough to be clipped."""
    rng = np.random.default_rng(0)

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        by = 0.01 if message.metadata.dst_node_id % 3 else 0.5
        arrays = model(d, rng, dict(message.content.array_records["arrays"]), by)
        metrics = MetricRecord({"num-examples": 100, "train_loss": 0.5})
        return [Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)]

    strategy = STRATEGIES[base]()
    guarded = Guarded(strategy, home=home) if kind == "guarded" else strategy
    guarded.start(LocalGrid(dict.fromkeys(range(2, n + 2), answer)), model(d, rng), num_rounds=ROUNDS)


def child(kind: str, base: str, n: int, d: int) -> None:
    """Print the bytes at the peak above those before the run; small rounds first load all that is loaded once."""
    with tempfile.TemporaryDirectory() as home:
        run(kind, base, n, 400_000, home)
        forget_peak()
        before = resident()
        run(kind, base, n, d, home)
        gc.collect()
        print(resident("VmHWM") - before)


def peak(kind: str, base: str, n: int, d: int) -> float:
    """Models at the peak of a run in a process of its own."""
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, __file__, "--child", kind, base, str(n), str(d)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(done.stdout.splitlines()[-1]) / (4 * d)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 20e6])
    parser.add_argument("--clients", type=int, nargs="+", default=[8])
    parser.add_argument("--strategies", nargs="+", default=["FedAvg"], choices=STRATEGIES)
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    if options.child:
        kind, base, n, d = options.child
        return child(kind, base, int(n), int(d))
    print(f"{machine()}\n")
    rows = []
    for base in options.strategies:
        for n in options.clients:
            for d in map(int, options.parameters):
                plain, guarded = peak("plain", base, n, d), peak("guarded", base, n, d)
                more = guarded - plain
                rows.append(
                    [base, n, f"{d:,}", f"{plain:.1f}", f"{guarded:.1f}", f"{more:.1f}", at_most(more, BAR, " models")]
                )
    header = ("strategy", "clients", "parameters", "plain, models", "guarded, models", "the guard's own", "bar")
    show("Peak memory of a Flower server", header, rows, f"{ROUNDS} rounds, `auto`, with ledger and checkpoints.")
    return None


if __name__ == "__main__":
    main()
