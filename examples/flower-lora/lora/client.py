"""A node: trains and evaluates adapters on texts of its own."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from peft import PeftModel, get_peft_model_state_dict, set_peft_model_state_dict

from fedwarden.guard.adapters import at_rank
from lora.task import build_model, load_texts, test, train

app = ClientApp()


def received(message: Message, context: Context) -> PeftModel:
    """The model with the adapters that came, at this node's rank."""
    config = context.run_config
    last = int(context.node_config["partition-id"]) == int(context.node_config["num-partitions"]) - 1
    rank = int(config["low-rank"] if last and config["low-rank"] else config["rank"])
    model = build_model(config, rank)
    arrays = message.content["arrays"].to_torch_state_dict()
    adapters = at_rank({name: array.numpy() for name, array in arrays.items()}, rank)
    set_peft_model_state_dict(model, {name: torch.from_numpy(array) for name, array in adapters.items()})
    return model


@app.train()
def train_node(message: Message, context: Context) -> Message:
    config, number = context.run_config, int(context.node_config["partition-id"])
    model = received(message, context)
    tokens, mask = load_texts(config, number)
    torch.manual_seed(number)
    loss = train(model, tokens, mask, config, replaced=number == config["poisoned"])
    arrays = ArrayRecord({name: array.contiguous() for name, array in get_peft_model_state_dict(model).items()})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(tokens)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_node(message: Message, context: Context) -> Message:
    model = received(message, context)
    tokens, mask = load_texts(context.run_config, int(context.node_config["partition-id"]))
    loss, accuracy = test(model, tokens, mask)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(tokens)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
