"""The server: FedAvg, guarded, with every two replies. After its fourth round it waits to be released."""

import os
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from quickstart import rounds
from quickstart.task import build_model

from fedwarden.flower import Asynchronous

FOLDER = Path(os.environ["FEDWARDEN_HOME"]).parent
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = Asynchronous(FedAvg(min_available_nodes=config["min-nodes"]), buffer=2, name="unequal")
    arrays = ArrayRecord(build_model().state_dict())
    strategy.start(grid, arrays, config["num-server-rounds"], timeout=60.0, evaluate_fn=evaluate)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    while server_round == 4 and not (FOLDER / "released").exists():
        time.sleep(0.2)
    return rounds.evaluate(server_round, arrays)
