"""How far one reads to follow a quiet round: functions, files, and changes of room from the replies to the model.

    python tools/rooms.py            functions, files, changes of room
    python tools/rooms.py --calls    every call, indented, with its room

A room is a folder of src/fedwarden. What is followed is ``Guarded(FedAvg()).aggregate_train`` in its second round, with
the guard ``auto``, ten honest nodes whose replies are there already, and no ledger. Each function that Python calls in
the package is noted in order, comprehensions too; the room changes where one is in another folder than the one before.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import TypeVar, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import fedwarden
from fedwarden.flower import Guarded

SOURCE = Path(fedwarden.__file__).parent
T = TypeVar("T")
NODES = range(2, 12)
SHAPES = {"fc.weight": (4, 3), "fc.bias": (4,), "out.weight": (2, 4), "out.bias": (2,)}


class Nodes:
    """A grid of honest nodes: each takes the same step from the model that it is sent, with noise of its own."""

    def get_node_ids(self) -> list[int]:
        return list(NODES)

    def replies(self, messages: Iterable[Message]) -> list[Message]:
        found = []
        for i, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"message {i}"
            rng = np.random.default_rng(message.metadata.dst_node_id)
            sent = message.content.array_records["arrays"]
            new = {k: a.numpy() - 0.1 + rng.normal(0, 0.02, SHAPES[k]).astype(np.float32) for k, a in sent.items()}
            arrays = ArrayRecord({name: Array(np.asarray(array, np.float32)) for name, array in new.items()})
            metrics = MetricRecord({"num-examples": 10, "train_loss": 0.5})
            found.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message))
        return found


@dataclass(frozen=True)
class Walk:
    """The functions that a call went through, in order, each with how deep it lay."""

    calls: tuple[tuple[int, CodeType], ...]

    @property
    def functions(self) -> int:
        return len({code for _, code in self.calls})

    @property
    def files(self) -> int:
        return len({code.co_filename for _, code in self.calls})

    @property
    def changes(self) -> int:
        rooms = [room(code) for _, code in self.calls]
        return sum(here != there for here, there in pairwise(rooms))


def room(code: CodeType) -> str:
    """The folder that a function is in.

    >>> room(Guarded.aggregate_train.__code__)
    'flower'
    """
    return Path(code.co_filename).relative_to(SOURCE).parts[0]


def walk(work: Callable[[], T]) -> tuple[Walk, T]:
    """The package's functions that some work calls in this thread, and what it gives."""
    calls, home, depth = list[tuple[int, CodeType]](), f"{SOURCE}{os.sep}", 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal depth
        if event in ("call", "return") and frame.f_code.co_filename.startswith(home):
            if event == "call":
                calls.append((depth, frame.f_code))
            depth += 1 if event == "call" else -1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        made = work()
    finally:
        sys.setprofile(before)
    return Walk(tuple(calls)), made


def quiet_round() -> Walk:
    """The way of the second round of ten honest nodes; the first one imports, and begins what is remembered."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1  # that of a ServerApp's process
    random.seed(0)  # Flower draws the nodes with it
    arrays = ArrayRecord({name: Array(np.zeros(shape, np.float32)) for name, shape in SHAPES.items()})
    nodes, guarded, found = Nodes(), Guarded(FedAvg()), Walk(())
    for t in (1, 2):
        replies = nodes.replies(guarded.configure_train(t, arrays, ConfigRecord(), cast(Grid, nodes)))
        found, (made, _) = walk(partial(guarded.aggregate_train, t, replies))
        arrays = cast(ArrayRecord, made)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--calls", action="store_true", help="every call, indented, with its room")
    asked = parser.parse_args(arguments)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    found = quiet_round()
    if asked.calls:
        for depth, code in found.calls:
            print(f"{'  ' * depth}{room(code)}: {code.co_qualname}")
    print(f"{found.functions} functions in {found.files} files, {found.changes} changes of room")
    return 0


if __name__ == "__main__":
    sys.exit(main())
