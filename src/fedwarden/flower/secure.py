"""Flower's SecAgg+ within a group: the server's part of one sum, and the mod that lets a Message API app take part.

Flower's protocol is of its older API: a client answers with a list of arrays and a count, a server has a strategy with
``configure_fit``. Both are met here, so that apps and strategies of the Message API stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.clientapp.typing import ClientAppCallable
from flwr.common import (
    Code,
    FitIns,
    FitRes,
    Parameters,
    Status,
    bytes_to_ndarray,
    ndarrays_to_parameters,
    parameters_to_ndarrays,
)
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.serverapp import Grid
from numpy.typing import NDArray

from ..core.stats import number
from .grid import Seen
from .records import arrays_of, metrics_of, view

COUNT, COLLECT = "num-examples", Stage.COLLECT_MASKED_VECTORS
Flat = NDArray[np.float64]


def flatten(record: ArrayRecord) -> Flat:
    """All arrays of a model, one after another. Flower's protocol gets arrays without a dimension wrong."""
    parts = [np.asarray(view(array), np.float64).reshape(-1) for array in record.values()]
    return np.concatenate(parts) if parts else np.zeros(0)


def secure_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """The mod of a node whose update is to be seen in the sum of its group only: ``ClientApp(mods=[secure_mod])``.

    The app is asked as ever and answers with arrays and ``num-examples``. What leaves the node is Flower's SecAgg+: the
    change of the model, weighted, rounded and masked. Its count of examples is not hidden, since Flower's protocol has
    a place for it; no other metric leaves.
    """
    if message.metadata.message_type != MessageType.TRAIN:
        return call_next(message, context)
    return secaggplus_mod(message, context, partial(_fit, call_next))


def _fit(call_next: ClientAppCallable, message: Message, context: Context) -> Message:
    """The app's reply as Flower's protocol wants it."""
    before = flatten(arrays_of(message)[1])
    reply = call_next(message, context)
    count = number(metrics_of(reply).get(COUNT))
    change = ndarrays_to_parameters([flatten(arrays_of(reply)[1]) - before])
    reply.content = compat.fitres_to_recorddict(FitRes(Status(Code.OK, ""), change, cast(int, count), {}), False)
    return reply


class SumFailed(Exception):
    """A sum that did not come out."""


def secure_sum(
    grid: Grid, workflow: SecAggPlusWorkflow, nodes: Sequence[int], content: RecordDict, round: int
) -> tuple[Flat, float]:
    """The mean change of the model over a group, weighted by examples, and the number of their examples.

    Any reply that is no part of the protocol counts as none; where too few are left, :class:`SumFailed`.
    """
    d = sum(int(np.prod(array.shape)) for array in arrays_of_content(content).values())
    strategy, seen = _Strategy(nodes), _Group(grid, nodes, d)
    empty = Context(run_id=0, node_id=0, node_config={}, state=RecordDict(), run_config={})
    context = LegacyContext(
        empty, strategy=cast(Any, strategy), client_manager=cast(Any, SimpleNamespace(num_available=lambda: len(nodes)))
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: round})
    context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord()
    state = WorkflowState()
    asked, careful = {node: RecordDict(dict(content)) for node in nodes}, cast(Grid, seen)
    try:
        done = workflow.setup_stage(careful, context, state)
        state.nid_to_fitins = asked
        for stage in (workflow.share_keys_stage, workflow.collect_masked_vectors_stage, workflow.unmask_stage):
            done = done and stage(careful, context, state)
    except Exception as error:  # whatever a member sends, it costs no more than the group's sum
        raise SumFailed(f"{type(error).__name__}: {error}") from error
    if not done or strategy.sum is None:
        raise SumFailed("too few members took part to the end; any of them can bring that about")
    return strategy.sum, strategy.examples


def arrays_of_content(content: RecordDict) -> ArrayRecord:
    """The model in a message to a node."""
    (record,) = content.array_records.values()
    return record


class _Strategy:
    """Stands where the workflow expects a strategy of the older API: asks these nodes, and keeps the sum."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self.nodes, self.examples = nodes, 0.0
        self.sum: Flat | None = None

    def configure_fit(self, round: int, parameters: Parameters, manager: Any) -> list[tuple[Any, FitIns]]:
        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in self.nodes]

    def aggregate_fit(self, round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        self.examples = float(sum(number(result.num_examples) for _, result in results))
        (mean,) = parameters_to_ndarrays(results[0][1].parameters)
        self.sum = np.asarray(mean, np.float64)
        return None, {}


class _Group(Seen):
    """The grid as the protocol of one group sees it: of each member at most one reply, and only what can be summed."""

    def __init__(self, grid: Grid, nodes: Sequence[int], d: int) -> None:
        super().__init__(grid)
        self.nodes, self.d, self.answered = frozenset(nodes), d, frozenset(nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        asked = list(messages)
        masked = any(m.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE] == COLLECT for m in asked)
        found: dict[int, Message] = {}
        for reply in self._grid.send_and_receive(asked, timeout=timeout):
            node = reply.metadata.src_node_id
            if node in self.nodes and node not in found and reply.has_content() and (not masked or self._fits(reply)):
                found[node] = reply
        self.answered &= frozenset(found)
        return list(found.values())

    def _fits(self, reply: Message) -> bool:
        """Whether a masked vector has the length of the model; NumPy would stretch one of another shape."""
        try:
            sent = cast(list[bytes], reply.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS])
            arrays = [bytes_to_ndarray(part) for part in sent]
            return [a.shape for a in arrays] == [(1,), (self.d,)] and all(a.dtype == np.int64 for a in arrays)
        except Exception:  # what a member sent cannot be read
            return False
