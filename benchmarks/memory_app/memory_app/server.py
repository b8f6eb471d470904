"""A server, plain or guarded, that writes down how much memory its process had at most, before and in the end."""

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedwarden.flower import Guarded

LAYERS = 20
app = ServerApp()


def resident() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@app.main()
def main(grid: Grid, context: Context) -> None:
    options, before = context.run_config, resident()
    n, rng = int(options["clients"]), np.random.default_rng(0)
    size = int(options["parameters"]) // LAYERS
    arrays = ArrayRecord({f"layer{i}": Array(rng.random(size, np.float32)) for i in range(LAYERS)})
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=n, min_available_nodes=n)
    guarded = Guarded(strategy) if options["guarded"] else strategy
    guarded.start(grid, arrays, num_rounds=int(options["rounds"]))
    Path(str(options["out"])).write_text(f"{before} {resident()}")
