"""Flower's grid, seen with care: some of its nodes only, and each reply by itself."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import httpx
from flwr.app import Message
from flwr.serverapp import Grid
from flwr.superlink.grid import HttpGrid

from ..core.notes import Note
from ..core.words import short
from ..guard.arrays import Unfit

POLL = 3.0  # seconds between two looks for replies, as Flower's own
QUICK = 0.1  # the same if the nodes are on this machine


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
    """A grid that pulls each reply by itself, and waits for as many as are wanted.

    Flower's own unpacks all replies of a poll together, so that one that cannot be unpacked would end the run, and cost
    the others, which count as received by then. ``unreadable`` says why a message has no reply, ``arrived`` after how
    many seconds one was there, to the length of a poll. By default all replies are waited for; with ``size`` so many of
    all that are due, whichever nodes send them first, and those of others later. ``landed`` are the messages that a
    call found answered or gave up, and ``late`` the replies to messages given up before, by node. ``keep`` stores a
    reply before the next one is pulled.
    """

    def __init__(self, grid: Grid, keep: Callable[[Message], Message] | None = None, poll: float | None = None) -> None:
        super().__init__(grid)
        usual = POLL if isinstance(grid, HttpGrid) else QUICK
        self.poll, self.size = usual if poll is None else poll, math.inf
        self.keep = keep
        self.unreadable: dict[str, Note] = {}
        self.arrived: dict[str, float] = {}
        self.flying: dict[str, tuple[Message, float]] = {}
        self.gone: dict[int, list[str]] = {}
        self.free: dict[int, float] = {}
        self.landed: list[Message] = []
        self.late: list[tuple[int, Message]] = []

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push the messages and wait for the replies, as in every Flower grid; each has ``timeout`` seconds."""
        self.unreadable, self.arrived, self.landed, self.late = {}, {}, [], list[tuple[int, Message]]()
        messages, wanted, found = list(messages), self.size, list[Message]()
        for message, number in zip_longest(messages, self._grid.push_messages(messages) if messages else ()):
            if number:
                self.flying[number] = (message, time.monotonic())
            else:  # the SuperLink did not take it
                self.landed.append(message)
        while True:
            for node, numbers in list(self.gone.items()) if wanted > 0 else ():
                came = {number: self._pull(number) for number in numbers}
                self.late += [(node, reply) for replies in came.values() for reply in replies]
                self.gone[node] = [n for n in numbers if not (came[n] or n in self.unreadable)]
            self.gone = {node: numbers for node, numbers in self.gone.items() if numbers}
            for number, (message, began) in list(self.flying.items()) if wanted > 0 else ():
                replies, waited = self._pull(number), time.monotonic() - began
                over = timeout is not None and waited + self.poll > timeout
                if replies or number in self.unreadable or over:
                    del self.flying[number]
                    self.landed.append(message)
                    found += replies
                    wanted -= any(reply.has_content() for reply in replies)
                if replies:
                    self.arrived[number] = waited
                elif timeout is not None and over:
                    node = message.metadata.dst_node_id
                    self.gone[node] = [*(self.gone.get(node, ()) if self.size < math.inf else ()), number]
                    self.free[node] = began + timeout * 2 ** len(self.gone[node])
                if wanted <= 0:
                    break
            none_free = wanted < math.inf and self.gone and self.busy() == set(self.gone)
            if wanted <= 0 or not (self.flying or (none_free and not self.landed and not self.late)):
                return found
            time.sleep(self.poll)

    def busy(self) -> set[int]:
        """The nodes that owe a reply and are not asked again yet.

        A node that owes m replies is asked again 2^m timeouts after the last message: one that is slower than its
        timeout would otherwise fall further behind with every message.
        """
        return {node for node in self.gone if time.monotonic() < self.free[node]}

    def _pull(self, number: str) -> list[Message]:
        try:
            found = list(self._grid.pull_messages([number]))
            return [self.keep(reply) for reply in found] if self.keep else found
        except Unfit as error:
            self.unreadable[number] = error.note
            return []
        except httpx.HTTPError:  # the SuperLink, not a client
            raise
        except Exception as error:  # what a client sent cannot be unpacked
            self.unreadable[number] = Note.of("unpacked", error=type(error).__name__, words=short(str(error)))
            return []
