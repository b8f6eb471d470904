"""What a node is called: by its number, by a function of one's own, or by a name that it sends itself.

A node's word is not trusted: the name that it first sends is its own for the whole run, one that another node has or
that is another node's number is nobody else's, and a node without a name goes by its number.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from flwr.app import Message

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.words import printable

Name = Callable[[int], str]
LONGEST = 40  # characters


class Names:
    """The names of the nodes of a run; a ``key`` is looked for in the metric and config records of replies."""

    def __init__(self, given: Name | str = str) -> None:
        self.key = given if isinstance(given, str) else ""
        self.given: Name = str if isinstance(given, str) else given
        self.known: dict[int, str] = {}

    def __call__(self, node: int) -> str:
        """A node's name; its number where nobody knows one, since any node may send a message."""
        if node in self.known:
            return self.known[node]
        try:
            name = str(self.given(node))
        except Exception:
            name = str(node)
        return name.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character cannot be written to disk

    def learn(self, node: int, reply: Message) -> Note | None:
        """Settle the name of a node at its first reply with content; a note where it may not have what it sends."""
        if not self.key or node in self.known or not reply.has_content():
            return None
        name = sent_name(reply, self.key)
        taken = name in self.known.values() or (name.isdecimal() and len(name) > 15)  # as long as a node's number
        self.known[node] = str(node) if taken or not name else name
        return Note.of("name_taken", str(node), name=name) if taken else None

    def check(self, named: Collection[str]) -> None:
        """Refuse names that carry a right, such as a larger share, where nodes name themselves."""
        if self.key and named:
            raise ConfigError(
                f"client_name={self.key!r} lets nodes name themselves, and {', '.join(sorted(named))} would be whoever "
                "says so first; give client_name a function of a node's number, or leave out 'shares' and 'known'"
            )

    def state_dict(self) -> dict[str, str]:
        return {str(node): name for node, name in self.known.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.known = {int(node): str(name) for node, name in state.items()}


def sent_name(reply: Message, key: str) -> str:
    """The name in a reply, cut short and printable; empty where there is none.

    A number, such as a partition's, is written as a whole one where it is whole.
    """
    records: list[Any] = [*reply.content.config_records.values(), *reply.content.metric_records.values()]
    for record in records:
        value = record.get(key)
        if isinstance(value, str):
            return printable(value.encode("utf-8", "backslashreplace").decode("utf-8")).strip()[:LONGEST]
        if isinstance(value, int | float) and not isinstance(value, bool):
            return f"{value:.15g}"
    return ""
