"""A guarded asynchronous federation: every few replies, a buffer, update the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.types import Cohort, Rejection, Reported
from ..guard.arrays import attempt
from ..guard.decide import Decision
from ..guard.warden import Warden
from ..guard.window import Window, refuse_jurors, server_rate
from .grid import OneByOne
from .inbox import Letter
from .records import Template, answered
from .strategy import Guarded


class Asynchronous(Guarded):
    """Wraps a strategy as :class:`Guarded` does and updates the model with every ``buffer`` replies, which are a round.

    Example: ``Asynchronous(FedAvg())``. A node gets the new model after the buffer with its reply, while others still
    train older ones. Its update is relative to the model that it was sent, and counts less the older that model is.
    """

    def __init__(
        self,
        strategy: Strategy,
        buffer: int = 10,
        warden: str | Warden = "auto",
        rate: float | None = None,
        **options: Any,
    ) -> None:
        """``rate`` is the learning rate of the server, by default that of :func:`.server_rate`.

        ``options`` are those of :class:`Guarded`. The ``timeout`` of ``start`` is the time in seconds that a node has
        to answer. A later reply is rejected, and the node is asked again when it comes, see :meth:`.OneByOne.busy`.
        """
        if not (isinstance(buffer, int) and buffer >= 1 and (rate is None or rate > 0)):
            raise ConfigError(f"needs buffer >= 1, a whole number, and rate > 0; got {buffer!r} and {rate!r}")
        super().__init__(strategy, warden, **options)
        refuse_jurors(self.warden.guard)
        if self.spool is not None:
            raise ConfigError("spool keeps the replies of one round, and updates here are judged with earlier ones")
        if self.adapters is not None:
            raise ConfigError("products of adapters are compared within a round, and a buffer is none: use Guarded")
        self.buffer, self.rate = buffer, rate
        self.step = 1.0  # the rate of this round
        self.window = Window()
        self.replies: OneByOne | None = None
        self.at_work: dict[int, tuple[int, ArrayRecord]] = {}  # by node: its model's version and the model

    def _careful(self, grid: Grid, timeout: float) -> Grid:
        self.replies = OneByOne(grid)
        self.at_work = {}
        return cast(Grid, self.replies)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The wrapped strategy's messages to nodes that are not at work."""
        assert self.replies is not None
        messages = list(super().configure_train(server_round, arrays, ConfigRecord(dict(config)), grid))
        version = server_round + self.done - 1
        self.at_work |= {message.metadata.dst_node_id: (version, arrays) for message in messages}
        self.step = self.rate or server_rate(self.buffer, max(len(self.at_work), 1))
        self.replies.size = self.window.size(self.buffer)
        return messages

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """Screen a buffer, judge it with the window, and let the wrapped strategy combine the replies that are kept."""
        assert self.replies is not None
        self.sent = self.replies.landed
        try:
            return super().aggregate_train(server_round, replies)
        finally:
            for message in self.replies.landed:
                self.at_work.pop(message.metadata.dst_node_id, None)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """No messages: nodes at work would answer long after the model has changed."""
        assert self.replies is not None
        self.sent, self.replies.size = [], 0
        return []

    def _asks(self, client: str) -> bool:
        assert self.replies is not None
        return super()._asks(client) and client not in map(self.names, {*self.at_work, *self.replies.busy()})

    def _sent_to(self, template: Template) -> Mapping[str, ArrayRecord]:
        return {self.names(node): arrays for node, (_, arrays) in self.at_work.items() if arrays is not self.arrays}

    def _late(self) -> list[Rejection]:
        assert self.replies is not None
        gone = [node for node, reply in self.replies.late if reply.has_content()]
        told = [attempt(self.names(node), partial(answered, r)) for node, r in self.replies.late if not r.has_content()]
        return [*(Rejection(self.names(node), Note.of("model_gone")) for node in gone), *filter(None, told)]

    def _cohort(self, t: int, letters: Sequence[Letter], template: Template, reported: Reported) -> Cohort:
        return self.window.beside(super()._cohort(t, letters, template, reported), self._began(letters))

    def _judged(self, letters: Sequence[Letter], decision: Decision) -> None:
        self.window = self.window.after(decision.cohort, self._began(letters))

    def _began(self, letters: Sequence[Letter]) -> dict[str, int]:
        """The version of the model that each of these clients started from."""
        versions = {self.names(node): version for node, (version, _) in self.at_work.items()}
        return {letter.client_id: versions[letter.client_id] for letter in letters}

    def _sound(self, arrays: ArrayRecord, notes: list[Note]) -> ArrayRecord | None:
        """The last model, moved towards the strategy's by the server's learning rate."""
        assert self.template is not None
        if self.step != 1.0:
            now, made = (self.template.flatten(record) for record in (self.arrays, self.template.restore(arrays)))
            arrays = self.template.unflatten(torch.lerp(now, made, self.step))
        return super()._sound(arrays, notes)

    @property
    def _mode(self) -> tuple[str, ...]:
        return (f"buffer {self.buffer}", f"rate {self.rate}")

    def _remembered(self) -> dict[str, Any]:
        return {**super()._remembered(), "window": self.window.state_dict()}

    def _recall(self, state: Mapping[str, Any]) -> None:
        super()._recall(state)
        self.window = Window.load(state["window"])
