"""Nodes of different speed. The last one answers its second message when it is allowed to, long after its time."""

import os
import time
from pathlib import Path

from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from quickstart import nodes

SECONDS = (1, 1, 1, 6, 1)
FOLDER = Path(os.environ["FEDWARDEN_HOME"]).parent
app = ClientApp()


@app.train()
def train_node(message: Message, context: Context) -> Message:
    number = int(context.node_config["partition-id"])
    messages = int(context.state.metric_records.get("seen", {"messages": 0})["messages"]) + 1
    context.state["seen"] = MetricRecord({"messages": messages})
    (FOLDER / f"node{number}-{messages}").touch()
    time.sleep(SECONDS[number])
    while number == 4 and messages == 2 and not (FOLDER / "allowed").exists():
        time.sleep(0.2)
    return nodes.train_node(message, context)
