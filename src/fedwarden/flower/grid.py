"""Flower's grid, seen with care: some of its nodes only, and each reply by itself."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid

from ..core.notes import Note
from ..core.words import short

POLL = 3.0  # seconds between two looks for replies, as Flower's own


class Seen:
    """A grid that does all that another one does."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


class Visible(Seen):
    """A grid that shows some of its nodes only."""

    def __init__(self, grid: Grid, shown: Callable[[list[int]], list[int]]) -> None:
        super().__init__(grid)
        self._shown = shown

    def get_node_ids(self) -> list[int]:
        return self._shown(list(self._grid.get_node_ids()))

    def get_nodes(self) -> list[Any]:
        shown = set(self.get_node_ids())
        return [node for node in self._grid.get_nodes() if node.node_id in shown]


class HandedOver(Seen):
    """A grid whose replies can be read once: Flower's loop would hold them until those of the next round are there."""

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        gc.collect()  # records of Flower refer to themselves: the last round's would stay beside those that arrive
        return iter(list(self._grid.send_and_receive(messages, timeout=timeout)))


class OneByOne(Seen):
    """A grid that pulls each reply by itself.

    Flower's own unpacks all replies of a poll together, so that one that cannot be unpacked would end the run, and cost
    the others, which count as received by then. ``unreadable`` says why a message has no reply, ``arrived`` after how
    many seconds one was there, to the length of a poll.
    """

    def __init__(self, grid: Grid, poll: float = POLL) -> None:
        super().__init__(grid)
        self.poll = poll
        self.unreadable: dict[str, Note] = {}
        self.arrived: dict[str, float] = {}

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push the messages and wait for the replies, as in every Flower grid."""
        self.unreadable, self.arrived, began = {}, {}, time.monotonic()
        waiting = list(self._grid.push_messages(messages))
        end = None if timeout is None else time.monotonic() + timeout
        found: list[Message] = []
        while True:
            for number in list(waiting):
                replies = self._pull(number)
                found += replies
                if replies:
                    self.arrived[number] = time.monotonic() - began
                if replies or number in self.unreadable:
                    waiting.remove(number)
            if not waiting or (end is not None and time.monotonic() + self.poll > end):
                return found
            time.sleep(self.poll)

    def _pull(self, number: str) -> list[Message]:
        try:
            return list(self._grid.pull_messages([number]))
        except httpx.HTTPError:  # the SuperLink, not a client
            raise
        except Exception as error:  # what a client sent cannot be unpacked
            self.unreadable[number] = Note.of("unpacked", error=type(error).__name__, words=short(str(error)))
            return []
