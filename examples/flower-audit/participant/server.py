"""The server: plain FedAvg. It knows nothing of the audit, which needs nothing of it."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from participant.task import build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    nodes = context.run_config["min-nodes"]
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=nodes, min_available_nodes=nodes)
    arrays = ArrayRecord(build_model().state_dict())
    strategy.start(grid, arrays, num_rounds=context.run_config["num-server-rounds"])
