"""Any Flower strategy, guarded where single updates are hidden: random groups, each summed by SecAgg+, and judged."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.types import RoundRecord, Word
from ..core.words import short
from ..guard.grouped import by_member, check_no_jurors, flags_of, forget, of_groups
from ..guard.groups import Evidence, Group, Groups, group_name
from ..guard.warden import Warden
from ..guard.word import heard
from .grid import Seen
from .journal import warn
from .secure import COUNT, SumFailed, arrays_of_content, secure_sum
from .strategy import Guarded
from .wrapped import Declared

WAIT = 1.0  # seconds between two looks for nodes


class GuardedGroups(Guarded):
    """Wraps a strategy like ``Guarded``, and sees sums of groups only: ``GuardedGroups(FedAvg(), Groups(size=3))``.

    Every round the nodes are put into random groups. Each group is one client for the guard and for the strategy, so
    that ``min_train_nodes`` and the like count groups, and its reply is the group's secure sum. Nodes need
    ``ClientApp(mods=[secure_mod])``. Groups are left out of a round; nodes are excluded, when no likely coalition of
    others explains what their groups did. Evaluation is asked of single nodes, as ever.
    """

    def __init__(
        self,
        strategy: Strategy,
        groups: Groups | None = None,
        warden: str | Warden = "groups",
        workflow: SecAggPlusWorkflow | None = None,
        **options: Any,
    ) -> None:
        """``workflow`` is Flower's, with ranges of one's own; by default a group is summed with all members or not.

        ``options`` are those of :class:`Guarded`.
        """
        self.groups, self.evidence = groups or Groups(), Evidence()
        if self.groups.size < 2:
            raise ValueError(f"a secure sum needs groups of 2 or more; got size={self.groups.size}: Guarded sees each")
        self.workflow = workflow or SecAggPlusWorkflow(1.0, 1.0)
        self.hidden: GroupGrid | None = None
        super().__init__(strategy, warden, client_name=self._name, **options)
        check_no_jurors(self.warden.guard)
        if self.adapters is not None:
            raise ConfigError("products of adapters need each client's factors, and a group shows a mean: use Guarded")

    def _careful(self, grid: Grid, timeout: float) -> Grid:
        """The same with groups in place of nodes while a round trains."""
        self.workflow.timeout = self.workflow.timeout or timeout
        self.hidden = GroupGrid(super()._careful(grid, timeout), self.workflow)
        return cast(Grid, self.hidden)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, one to each group of the round."""
        hidden = self.hidden
        assert hidden is not None
        core = Declared.by(self.strategy)
        floor = max(core.min_train_nodes, core.min_available_nodes)
        while len(nodes := hidden.everybody()) < self.groups.size * floor:
            time.sleep(WAIT)
        self._hear(server_round + self.done, nodes)
        self.evidence = self.evidence.obeying(self._clients)
        out = {*self.evidence.excluded, *self.word.excluded}
        hidden.excluded = frozenset(int(client) for client in out if client.isdecimal())
        asked = sorted(set(nodes) - hidden.excluded)
        hidden.form(self.groups.form([str(node) for node in asked], server_round + self.done), server_round + self.done)
        if len(hidden.groups) < floor:
            warn(f"{len(asked)} nodes are too few for {floor} groups of {self.groups.size}; no node is asked")
            self._meet(arrays)
            self.arrays, self.sent = arrays, []
            return []
        return super().configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages, to single nodes that are not excluded."""
        assert self.hidden is not None
        self.hidden.form((), server_round + self.done)
        return super().configure_evaluate(server_round, arrays, config, grid)

    def _name(self, node: int) -> str:
        members = self.hidden.groups.get(node) if self.hidden is not None else None
        return group_name(tuple(map(str, members))) if members else str(node)

    def _commit(self, record: RoundRecord, arrays: ArrayRecord) -> None:
        """Learn of the members what became of their groups, and forget the groups."""
        assert self.hidden is not None
        groups: list[Group] = [tuple(map(str, members)) for members in self.hidden.groups.values()]
        self.warden.memory = forget(self.warden.guard, self.warden.memory)
        word, before = self._clients, self.evidence
        self.evidence = self.groups.step(before, flags_of(groups, record, word.observing), word)
        new = [Note.of("groups_prove", c) for c in self.evidence.excluded if c not in before.excluded]
        for note in (*self.hidden.failed, *new):
            warn(str(note))
        members = [client for group in groups for client in group]
        told = tuple(r for r in record.rejected if r.reason.kind != "no_answer")  # that a sum is lost is a note
        record = replace(record, rejected=told, notes=(*record.notes, *self.hidden.failed))
        super()._commit(by_member(record, groups, members, before, self.evidence, word), arrays)

    @property
    def _clients(self) -> Word:
        """The operator's word on single nodes."""
        return heard(self.word, self.warden.guard)

    @property
    def _judging(self) -> Word:
        return of_groups(self.word)

    @property
    def _mode(self) -> tuple[str, ...]:
        return (repr(self.groups),)

    def _remembered(self) -> dict[str, Any]:
        return {**super()._remembered(), "groups": self.evidence.state_dict()}

    def _recall(self, state: Mapping[str, Any]) -> None:
        super()._recall(state)
        self.evidence = Evidence.load(state["groups"])


class GroupGrid(Seen):
    """A grid whose nodes, while a round trains, are groups: each goes by its first member and answers with its sum.

    ``failed`` says of the last round which groups have no sum, and why.
    """

    def __init__(self, grid: Grid, workflow: SecAggPlusWorkflow) -> None:
        super().__init__(grid)
        self.workflow = workflow
        self.groups: dict[int, tuple[int, ...]] = {}
        self.excluded: frozenset[int] = frozenset()
        self.failed: list[Note] = []
        self.round = 0

    def form(self, groups: Iterable[Group], round: int) -> None:
        """Show these groups from now on, or single nodes where there are none."""
        members = [tuple(map(int, group)) for group in groups]
        self.groups, self.round = {group[0]: group for group in members}, round

    def everybody(self) -> list[int]:
        """All nodes, the excluded too."""
        return list(self._grid.get_node_ids())

    def get_node_ids(self) -> list[int]:
        return list(self.groups) or [node for node in self.everybody() if node not in self.excluded]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Sum each group that is asked; what is for single nodes goes to them."""
        if not self.groups:
            return list(self._grid.send_and_receive(messages, timeout=timeout))
        self.failed = []
        replies = []
        for message in messages:
            members = self.groups[message.metadata.dst_node_id]
            try:
                mean, examples = secure_sum(self._grid, self.workflow, members, message.content, self.round)
            except SumFailed as error:
                self.failed.append(Note.of("no_sum", *map(str, members), error=short(str(error))))
                continue
            replies.append(Message(_model(message.content, mean, examples), reply_to=message))
        return replies


def _model(sent: RecordDict, mean: Any, examples: float) -> RecordDict:
    """What a client with the mean change of a group would answer."""
    arrays, start = {}, 0
    for name, array in arrays_of_content(sent).items():
        old = array.numpy()
        new = old + mean[start : start + old.size].reshape(old.shape)
        start += old.size
        arrays[name] = Array(np.asarray(new if old.dtype.kind == "f" else np.rint(new)).astype(old.dtype))
    key = next(iter(sent.array_records))
    return RecordDict({key: ArrayRecord(arrays), "metrics": MetricRecord({COUNT: examples})})
