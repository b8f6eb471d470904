"""Flower without Ray: a grid whose nodes are functions, and replies good and bad."""

import io
import random
from collections.abc import Callable, Iterable
from itertools import count
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from numpy.typing import NDArray

SUPERLINK = 1
N, BAD = 8, 104
NODES = range(100, 100 + N)
METRICS: dict[str, Any] = {"num-examples": 10, "train_loss": 0.5, "norm_bit": 1}
PRIVATE: dict[str, Any] = {"noise_multiplier": 1e-9, "num_sampled_clients": N}
BASES = {
    "FedAvg": lambda: flower.FedAvg(),
    "FedAvgM": lambda: flower.FedAvgM(server_momentum=0.9),
    "FedProx": lambda: flower.FedProx(proximal_mu=0.1),
    "FedAdam": lambda: flower.FedAdam(),
    "FedAdagrad": lambda: flower.FedAdagrad(),
    "FedYogi": lambda: flower.FedYogi(),
    "QFedAvg": lambda: flower.QFedAvg(client_learning_rate=0.1),
    "FedMedian": lambda: flower.FedMedian(),
    "FedTrimmedAvg": lambda: flower.FedTrimmedAvg(),
    "Krum": lambda: flower.Krum(num_malicious_nodes=1),
    "MultiKrum": lambda: flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=5),
    "Bulyan": lambda: flower.Bulyan(num_malicious_nodes=1),
    "DP server fixed": lambda: flower.DifferentialPrivacyServerSideFixedClipping(
        flower.FedAvg(), clipping_norm=1.0, **PRIVATE
    ),
    "DP client fixed": lambda: flower.DifferentialPrivacyClientSideFixedClipping(
        flower.FedAvg(), clipping_norm=1.0, **PRIVATE
    ),
    "DP server adaptive": lambda: flower.DifferentialPrivacyServerSideAdaptiveClipping(
        flower.FedAvg(), clipped_count_stddev=1e-6, **PRIVATE
    ),
    "DP client adaptive": lambda: flower.DifferentialPrivacyClientSideAdaptiveClipping(
        flower.FedAvg(), clipped_count_stddev=1e-6, **PRIVATE
    ),
}
Node = Callable[[Message], list[Message]]
Reply = Callable[[Message, int], list[Message]]


class LocalGrid(Grid):
    """Answers at once: each node is a function from a message to replies."""

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.nodes, self.numbers, self.asked = nodes, count(1), list[tuple[str, int]]()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.open: dict[str, Message] = {}  # each node answers when its reply is pulled
        for message in messages:
            message.metadata.__dict__["_message_id"] = number = f"m{next(self.numbers)}"
            self.open[number] = message
        return list(self.open)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        asked = [self.open.pop(number) for number in message_ids]
        return [reply for message in asked for reply in self.nodes[message.metadata.dst_node_id](message)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"m{next(self.numbers)}"
            self.asked.append((message.metadata.message_type, message.metadata.dst_node_id))
            replies += self.nodes[message.metadata.dst_node_id](message)
        return replies


def model(seed: int = 0) -> ArrayRecord:
    """Three layers: a matrix, a vector, and a scalar."""
    rng = np.random.default_rng(seed)
    shapes = {"fc.weight": (4, 3), "fc.bias": (4,), "scale": ()}
    return ArrayRecord({k: Array(np.asarray(rng.normal(size=s), np.float32)) for k, s in shapes.items()})


def state(record: ArrayRecord) -> dict[str, NDArray[Any]]:
    return {name: array.numpy() for name, array in record.items()}


def content(arrays: dict[str, NDArray[Any]], metrics: dict[str, Any] | None = None) -> RecordDict:
    record = ArrayRecord({k: v if isinstance(v, Array) else Array(np.asarray(v)) for k, v in arrays.items()})
    return RecordDict({"arrays": record, "metrics": MetricRecord(METRICS if metrics is None else metrics)})


def of_node(**config: Any) -> Context:
    """The context of node 7 with this configuration."""
    return Context(run_id=1, node_id=7, node_config=config, state=RecordDict(), run_config={})


def asking(t: int, arrays: Any, kind: str = "train") -> Message:
    """What a server asks of node 7 in a round."""
    record = ArrayRecord({name: Array(np.asarray(a)) for name, a in arrays.items()})
    return Message(RecordDict({"arrays": record, "config": ConfigRecord({"server-round": t})}), 7, kind)


def through(mod: Any, message: Message, here: Context, step: Callable[[ArrayRecord], ArrayRecord]) -> Message:
    """The answer of an app with a mod, in a process of its own: only the context is left of the ones before."""
    app = ClientApp(mods=[mod])

    @app.train()
    @app.evaluate()
    def answer(message: Message, context: Context) -> Message:
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1})})
        if message.metadata.message_type == "train":
            content["arrays"] = step(message.content.array_records["arrays"])
        return Message(content, reply_to=message)

    return app(message, here)


def trained(message: Message, node: int) -> dict[str, NDArray[Any]]:
    """Honest training: every node takes the same step, with noise of its own."""
    t = message.content.config_records["config"]["server-round"]
    assert isinstance(t, int)
    rng = np.random.default_rng([node, t])
    arrays = state(message.content.array_records["arrays"])
    return {k: np.asarray(v - 0.1 + 0.02 * rng.normal(size=v.shape), np.float32) for k, v in arrays.items()}


def evaluated(message: Message) -> list[Message]:
    return [Message(RecordDict({"metrics": MetricRecord({"num-examples": 10, "acc": 0.5})}), reply_to=message)]


def training(arrays: Callable[[Message], dict[str, NDArray[Any]]], metrics: dict[str, Any] | None = None) -> Node:
    """A node that evaluates honestly, and answers a request to train with these arrays and metrics."""

    def answer(message: Message) -> list[Message]:
        if message.metadata.message_type == "evaluate":
            return evaluated(message)
        return [Message(content(arrays(message), {**METRICS, **(metrics or {})}), reply_to=message)]

    return answer


def honest(node: int, metrics: dict[str, Any] | None = None) -> Node:
    return training(lambda message: trained(message, node), metrics)


def shifted(by: float, noise: float = 0.0, metrics: dict[str, Any] | None = None) -> Node:
    """A node that moves the model by so much in every round, whatever the others do."""

    def arrays(message: Message) -> dict[str, NDArray[Any]]:
        t = message.content.config_records["config"]["server-round"]
        assert isinstance(t, int)
        rng = np.random.default_rng(t)
        sent = state(message.content.array_records["arrays"])
        return {k: np.asarray(v + by + noise * rng.normal(size=v.shape), np.float32) for k, v in sent.items()}

    return training(arrays, metrics)


def crowd_with(bad: Node) -> dict[int, Node]:
    """Eight nodes, seven of them honest."""
    return {node: bad if node == BAD else honest(node) for node in NODES}


class Killed(BaseException):
    """Stands for kill -9: nothing below may catch it and tidy up."""


class FragileGrid(LocalGrid):
    """Dies when the messages of one round are sent."""

    def __init__(self, nodes: dict[int, Node], dies_in: int, how: Callable[[], None] | None = None) -> None:
        super().__init__(nodes)
        self.dies_in, self.how = dies_in, how or self.stop

    def stop(self) -> None:
        raise Killed

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        messages = list(messages)
        if messages and messages[0].content.config_records["config"]["server-round"] == self.dies_in:
            self.how()
        return super().send_and_receive(messages, timeout=timeout)


def claiming(shape: tuple[int, ...]) -> Array:
    """An array whose header claims a shape that its bytes do not hold."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return Array("float32", shape, "numpy.ndarray", buffer.getvalue() + bytes(64))


def _arrays(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Reply:
    return lambda message, node: [Message(content(change(trained(message, node))), reply_to=message)]


def _metrics(**given: object) -> Reply:
    metrics = METRICS | {key.replace("_examples", "-examples"): value for key, value in given.items()}
    new = {key: value for key, value in metrics.items() if value is not None}
    return lambda message, node: [Message(content(trained(message, node), new), reply_to=message)]


def _dead(message: Message, node: int) -> list[Message]:
    reply = Message(Error(3, "node is offline"), reply_to=message)
    reply.metadata.__dict__["_src_node_id"] = SUPERLINK
    return [reply]


def _twice(message: Message, node: int) -> list[Message]:
    late = {k: v + 1e3 for k, v in trained(message, node).items()}
    return [Message(content(trained(message, node)), reply_to=message), Message(content(late), reply_to=message)]


def _not_numpy(arrays: dict[str, Any]) -> dict[str, Any]:
    good = Array(arrays["fc.bias"])
    return {**arrays, "fc.bias": Array(good.dtype, good.shape, "pickle", good.data)}


# what one bad node answers; the flag says whether its update is used after all
BAD_REPLIES: dict[str, tuple[Reply, bool]] = {
    "nan": (_arrays(lambda a: {**a, "fc.bias": a["fc.bias"] * np.nan}), False),
    "inf": (_arrays(lambda a: {**a, "scale": np.float32(np.inf)}), False),
    "wrong shape": (_arrays(lambda a: {**a, "fc.weight": a["fc.weight"].T}), False),
    "shape (1,)": (_arrays(lambda a: {**a, "fc.bias": a["fc.bias"][:1]}), False),
    "extra array": (_arrays(lambda a: {**a, "more": np.ones(3)}), False),
    "missing array": (_arrays(lambda a: {k: v for k, v in a.items() if k != "scale"}), False),
    "no arrays": (_arrays(lambda a: {}), False),
    "integers": (_arrays(lambda a: {**a, "fc.bias": np.full(4, 10**6)}), False),
    "strings": (_arrays(lambda a: {**a, "fc.bias": np.array(["a", "b", "c", "d"])}), False),
    "complex": (_arrays(lambda a: {**a, "fc.bias": a["fc.bias"] + 1j}), False),
    "not an array": (_arrays(_not_numpy), False),
    "rubbish": (_arrays(lambda a: {**a, "fc.bias": Array("float32", (4,), "numpy.ndarray", b"rubbish")}), False),
    "a terabyte": (_arrays(lambda a: {**a, "fc.bias": claiming((1 << 38,))}), False),
    "large": (_arrays(lambda a: {**a, "fc.bias": np.zeros(1 << 20, np.float32)}), False),
    "another order": (_arrays(lambda a: dict(reversed(a.items()))), True),
    "count -1e9": (_metrics(num_examples=-1e9), False),
    "count 0": (_metrics(num_examples=0), False),
    "count nan": (_metrics(num_examples=float("nan")), False),
    "count a list": (_metrics(num_examples=[10, 10]), False),
    "no count": (_metrics(num_examples=None), False),
    "another metric": (_metrics(more=1.0), False),
    "loss nan": (_metrics(train_loss=float("nan")), False),
    "an exception": (lambda message, node: [Message(Error(0, "boom\n" * 999), reply_to=message)], False),
    "dead": (_dead, False),
    "silent": (lambda message, node: [], False),
    "empty": (lambda message, node: [Message(RecordDict(), reply_to=message)], False),
    "twice": (_twice, True),
}


def bad(kind: str, node: int) -> Node:
    reply = BAD_REPLIES[kind][0]

    def answer(message: Message) -> list[Message]:
        return evaluated(message) if message.metadata.message_type == "evaluate" else reply(message, node)

    return answer


def play(
    strategy: flower.Strategy, nodes: dict[int, Node], rounds: int = 2, arrays: ArrayRecord | None = None
) -> tuple[LocalGrid, flower.Result]:
    random.seed(0)  # Flower samples nodes with it
    grid = LocalGrid(nodes)
    return grid, strategy.start(grid, arrays or model(), num_rounds=rounds)


def first_message() -> Message:
    return Message(RecordDict({"arrays": model(), "config": ConfigRecord({"server-round": 1})}), 1, "train")


def close(a: ArrayRecord, b: ArrayRecord) -> None:
    assert list(a) == list(b)
    for name, value in state(b).items():
        np.testing.assert_allclose(state(a)[name], value, rtol=1e-4, atol=1e-5)


def one_round(
    strategy: flower.Strategy, nodes: dict[int, Node], arrays: ArrayRecord | None = None
) -> tuple[ArrayRecord | None, MetricRecord | None]:
    """A single round without the ledger, quick enough for a grid of cases."""
    random.seed(0)
    grid = LocalGrid(nodes)
    replies = grid.send_and_receive(strategy.configure_train(1, arrays or model(), ConfigRecord(), grid))
    return strategy.aggregate_train(1, replies)
