"""The server: FedAvg, guarded."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from fedwarden.flower import Guarded
from quickstart.task import build_model, load_test, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = config["min-nodes"]
    strategy = FedAvg(
        fraction_evaluate=config["fraction-evaluate"],
        min_train_nodes=nodes,
        min_evaluate_nodes=nodes,
        min_available_nodes=nodes,
    )
    strategy = Guarded(strategy, name="quickstart", home=config["home"] or None, resume=config["resume"])
    arrays = ArrayRecord(build_model().state_dict())
    strategy.start(grid, arrays, num_rounds=config["num-server-rounds"], evaluate_fn=evaluate)


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """The model on samples that no node holds."""
    model = build_model()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, *load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
