"""A node: trains and evaluates on data of its own."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from quickstart.task import build_model, load_partition, test, train

app = ClientApp()


def data_of(context: Context) -> tuple[Tensor, Tensor]:
    number = int(context.node_config["partition-id"])
    x, y = load_partition(number, int(context.node_config["num-partitions"]))
    return (x, (y + 1) % 10) if number == context.run_config["poisoned"] else (x, y)


@app.train()
def train_node(message: Message, context: Context) -> Message:
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data_of(context)
    loss = train(model, x, y, context.run_config["local-epochs"], context.run_config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_node(message: Message, context: Context) -> Message:
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data_of(context)
    loss, accuracy = test(model, x, y)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
