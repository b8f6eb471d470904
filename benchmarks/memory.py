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

from common import at_most, machine, show
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

from fedwarden.flower import Guarded
from guard import forget_peak, resident

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from flower.test_memory import LAYERS, rounds

BAR = 2.0  # models beyond Flower's


def run(kind: str, n: int, d: int, home: str) -> None:
    """A few rounds: alone, guarded with ledger and checkpoints, or guarded with replies on disk."""
    guarded = {"guarded": Guarded(FedAvg(), home=home), "spool": Guarded(FedAvg(), home=home, spool=home)}
    rounds(guarded.get(kind) or FedAvg(), n, d // LAYERS)


def child(kind: str, n: int, d: int) -> None:
    """Print the bytes at the peak above those before the run; small rounds first load all that is loaded once."""
    with tempfile.TemporaryDirectory() as home:
        run(kind, n, 400_000, home)
        forget_peak()
        before = resident()
        run(kind, n, d, home)
        gc.collect()
        print(resident("VmHWM") - before)


def peak(kind: str, n: int, d: int) -> float:
    """Models at the peak of a run in a process of its own."""
    env = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0"}
    command = [sys.executable, __file__, "--child", kind, str(n), str(d)]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return int(done.stdout.splitlines()[-1]) / (4 * d)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=float, nargs="+", default=[1e6, 20e6])
    parser.add_argument("--clients", type=int, nargs="+", default=[8])
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    if options.child:
        kind, n, d = options.child
        return child(kind, int(n), int(d))
    print(f"{machine()}\n")
    rows = []
    for n in options.clients:
        for d in map(int, options.parameters):
            plain, guarded, spooled = (peak(kind, n, d) for kind in ("plain", "guarded", "spool"))
            bar = at_most(guarded - plain, BAR, " models")
            rows.append(
                [n, f"{d:,}", f"{plain:.1f}", f"{guarded:.1f}", f"{guarded - plain:.1f}", bar, f"{spooled:.1f}"]
            )
    header = (
        "clients", "parameters", "plain, models", "guarded, models", "the guard's own", "bar", "with a spool, models"
    )  # fmt: skip
    show("Peak memory of a Flower server", header, rows, "Three rounds, `auto`, with ledger and checkpoints.")
    return None


if __name__ == "__main__":
    main()
