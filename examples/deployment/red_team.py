"""The quickstart's client with a red team in it; it is off on every node whose own configuration does not name it."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from quickstart.task import build_model, load_partition, train

from fedwarden.flower.mods import attack_mod, poisoned

app = ClientApp(mods=[attack_mod()])  # attacks on updates


@app.train()
def train_node(message: Message, context: Context) -> Message:
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = load_partition(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    x, y = poisoned(message, context, x, y, classes=10)  # attacks on data
    loss = train(model, x, y, context.run_config["local-epochs"], context.run_config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
