"""A node that does not train: it returns the model with noise, every third node with much of it."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    rng, by = np.random.default_rng(number), np.float32(0.5 if number % 3 == 0 else 0.01)
    arrays = ArrayRecord()
    for name, array in message.content.array_records["arrays"].items():
        sent = array.numpy()
        arrays[name] = Array(sent + by * (rng.random(sent.shape, np.float32) - np.float32(0.5)))
    metrics = MetricRecord({"num-examples": 100, "train_loss": 0.5})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
