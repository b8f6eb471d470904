"""The server: FedAvg, guarded; the products of the adapters are judged and combined."""

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from peft import get_peft_model_state_dict

from fedwarden.flower import Guarded
from lora.task import build_model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes = config["min-nodes"]
    model = build_model(config, int(config["rank"]))
    strategy = FedAvg(min_train_nodes=nodes, min_evaluate_nodes=nodes, min_available_nodes=nodes)
    strategy = Guarded(strategy, adapters="lora", name="lora", home=config["home"] or None)
    arrays = ArrayRecord({name: array.contiguous() for name, array in get_peft_model_state_dict(model).items()})
    strategy.start(grid, arrays, num_rounds=config["num-server-rounds"])
