"""A scenario on Flower's simulation engine: the same data, training, guard and numbers as in one process."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from threading import Event

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation
from torch import Tensor

from ..core.config import parse
from ..core.errors import FedwardenError
from ..core.plugins import load
from ..flower.records import answered, view
from .data.world import Rows, load_data, settle
from .federation import Federation, OnRound, Result, simulate
from .recorded import ON_FLOWER
from .scenario import ASKED, Scenario
from .training.engine import one_thread
from .training.limits import processes

POLL = 0.02  # seconds between two looks for replies

client_app = ClientApp()


@lru_cache(maxsize=1)
def federation_of(text: str) -> Federation:
    """The scenario as every process of the engine builds it, once."""
    scenario = parse(Scenario, json.loads(text))
    for name in scenario.imports:
        load(name, why=ASKED)
    return Federation(scenario)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client of the scenario; its number is that of the node's partition."""
    config = message.content.config_records["config"]
    federation = federation_of(str(config["scenario"]))
    client, t = federation.clients[int(str(context.node_config["partition-id"]))], int(str(config["round"]))
    params = torch.from_numpy(view(message.content.array_records["arrays"]["params"]).copy())
    out = torch.empty(1, len(params), device=federation.device)
    with one_thread():
        federation.engine.train(params.to(federation.device), t, [client], out, federation.world.changed(t))
    model = ArrayRecord({"params": Array(out[0].cpu().numpy())})
    return Message(RecordDict({"arrays": model, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


@client_app.query()
def who(message: Message, context: Context) -> Message:
    """The number of the node's partition."""
    number = int(context.node_config["partition-id"])
    return Message(RecordDict({"metrics": MetricRecord({"partition-id": number})}), reply_to=message)


class GridTrainer:
    """Trains the clients of a round on the nodes of a grid; ``stop`` ends the wait for them."""

    def __init__(self, grid: Grid, scenario: Scenario, stop: Event) -> None:
        self.grid, self.text, self.stop = grid, scenario.model_dump_json(), stop
        self.nodes: dict[str, int] = {}
        while len(nodes := list(grid.get_node_ids())) < scenario.data.clients:
            self._wait()
        for node, reply in self._ask({node: RecordDict() for node in nodes}, "query").items():
            number = int(str(reply.content.metric_records["metrics"]["partition-id"]))
            self.nodes[scenario.client_ids[number]] = node

    def train(self, params: Tensor, round: int, client_ids: Sequence[str], changed: Mapping[str, Rows]) -> Tensor:
        """The models of these clients; what changed in their data they know by themselves."""
        content = RecordDict(
            {
                "arrays": ArrayRecord({"params": Array(params.cpu().numpy())}),
                "config": ConfigRecord({"scenario": self.text, "round": round}),
            }
        )
        replies = self._ask({self.nodes[c]: content for c in client_ids}, "train")
        rows = [view(replies[self.nodes[c]].content.array_records["arrays"]["params"]) for c in client_ids]
        return torch.from_numpy(np.stack(rows)) if rows else torch.empty(0, len(params))

    def _ask(self, contents: Mapping[int, RecordDict], kind: str) -> dict[int, Message]:
        """Every node's reply."""
        messages = [Message(content, node, kind) for node, content in contents.items()]
        waiting = set(self.grid.push_messages(messages))
        asked = {m.metadata.message_id: m.metadata.dst_node_id for m in messages}
        replies: dict[int, Message] = {}
        while waiting:
            for reply in self.grid.pull_messages(waiting):
                node = asked[reply.metadata.reply_to_message_id]
                try:
                    answered(reply)
                except ValueError as error:
                    raise FedwardenError(f"a client of Flower's simulation engine {error}") from error
                replies[node] = reply
                waiting.discard(reply.metadata.reply_to_message_id)
            self._wait()
        return replies

    def _wait(self) -> None:
        if self.stop.is_set():
            raise KeyboardInterrupt
        time.sleep(POLL)


def simulate_on_flower(
    scenario: Scenario,
    folder: Path | None = None,
    resume: str | int | None = None,
    on_round: OnRound | None = None,
    on_start: Callable[[int, Federation], None] | None = None,
) -> Result:
    """As :func:`fedwarden.sim.federation.simulate`, with every client a node of Flower's simulation engine (Ray)."""
    train = scenario.train.model_copy(update={"trainer": "sequential"})
    scenario = scenario.model_copy(update={"train": train})
    scenario = settle(scenario, load_data(scenario))
    results: list[Result] = []
    stop, app = Event(), ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        with suppress(KeyboardInterrupt):  # raised again by the engine's own thread
            trainer = GridTrainer(grid, scenario, stop)
            results.append(simulate(scenario, folder, resume, on_round, on_start, ON_FLOWER, trainer))

    cores = processes(train.workers)
    gpus = 0.0 if train.device == "cpu" else 1.0
    log = logging.getLogger("flwr")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        run_simulation(
            app,
            client_app,
            scenario.data.clients,
            backend_config={
                "init_args": {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
                "client_resources": {"num_cpus": 1, "num_gpus": gpus},
            },
        )
    except RuntimeError as error:
        raise FedwardenError(f"Flower's simulation engine failed: {error.__cause__ or error}") from error
    finally:
        stop.set()
        log.setLevel(level)
    return results[0]
