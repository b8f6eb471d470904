"""A node that trains as ever; one of them also audits, and what it sees stays with it."""

import logging
from collections.abc import Sequence
from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

import fedwarden as fw
from fedwarden.core.types import Observation
from fedwarden.flower import audit_mod
from fedwarden.flower.mods.audit import to_ledger
from participant.task import build_model, load_partition, train

PROBE = 200  # samples of one's own that the shared model is looked at with


def build(context: Context) -> fw.Auditor:
    number, of = node(context)
    x, y = load_partition(number, of, changed=False)
    return fw.Auditor(build_model(), probe=x[:PROBE], labels=y[:PROBE], n=of)


def record(context: Context, observations: Sequence[Observation]) -> None:
    """Keep everything in the node's own ledger, and say at once what stands out."""
    home = str(context.run_config["home"])
    to_ledger(Path(home) if home else None, context, observations)
    for o in observations:
        if o.alarm:
            logging.getLogger("flwr").warning(
                "the others' model changed in round %d: %s by %s, %.1f deviations from its trend",
                o.round, o.source, o.metric, o.score,
            )  # fmt: skip


audit = audit_mod(build, record)


def audit_here(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod on the node that audits."""
    mine = node(context)[0] == context.run_config["auditor"]
    return audit(message, context, call_next) if mine else call_next(message, context)


app = ClientApp(mods=[audit_here])


@app.train()
def train_node(message: Message, context: Context) -> Message:
    config, t = context.run_config, message.content["config"]["server-round"]
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    number, of = node(context)
    x, y = load_partition(number, of, changed=number == config["changed"] and t >= config["change-round"])
    train(model, x, y, config["local-epochs"], config["lr"])
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def node(context: Context) -> tuple[int, int]:
    return int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
