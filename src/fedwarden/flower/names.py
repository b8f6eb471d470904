"""What a node is called: by its number, by a function of one's own, or by a name that it sends itself.

A node's word is not trusted: the name that it first sends is its own for the whole run, one that another node has or
that is another node's number is nobody else's, and a node without a name goes by its number.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any

from flwr.app import Message

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.stats import number
from ..core.types import name_fault
from ..core.words import printable

Name = Callable[[int], str]
LONGEST = 40  # characters
MARKS = frozenset("-_.,:+#")  # the signs that a name may have: none that a chat takes for a link or a call to all
FILLERS = "\u115f\u1160"  # letters that are not seen


class Names:
    """The names of the nodes of a run; a ``key`` is looked for in the metric and config records of replies."""

    def __init__(self, given: Name | str = str) -> None:
        self.key = given if isinstance(given, str) else ""
        self.given: Name = str if isinstance(given, str) else given
        self.known: dict[int, str] = {}

    def __call__(self, node: int) -> str:
        """A node's name; its number where there is none that can be used, since any node may send a message."""
        if node in self.known or self.given is str:
            return self.known.get(node, str(node))
        try:
            name = str(self.given(node))
        except Exception:
            name = str(node)
        name = name.encode("utf-8", "backslashreplace").decode("utf-8")  # half a character cannot be written to disk
        return str(node) if name_fault(name) else name

    def learn(self, node: int, reply: Message, asked: Collection[int] = ()) -> Note | None:
        """Settle the name of a node at its first reply with content; a note where it sends none or may not have it.

        Nobody is called by the number of another node that was ``asked``, nor by what looks like another's name.
        """
        if not self.key or node in self.known or not reply.has_content():
            return None
        name = sent_name(reply, self.key)
        used = {looks(other) for other in self.known.values()}
        numbers = {str(other) for other in asked if other != node}
        taken = looks(name) in used or looks(name) in numbers or (name.isdecimal() and len(name) > 15)
        own = str(node)
        while looks(own) in used:
            own = f"node {own}"
        self.known[node] = own if taken or not name else name
        if not name:
            return Note.of("name_missing", self.known[node], key=self.key)
        return Note.of("name_taken", self.known[node], name=name) if taken else None

    def check(self, named: Collection[str]) -> None:
        """Refuse names that carry a right, such as a larger share, where nodes name themselves."""
        if self.key and named:
            raise ConfigError(
                f"client_name={self.key!r} lets nodes name themselves, so any node could claim to be "
                f"{', '.join(sorted(named))}; give client_name a function of a node's number, or leave out 'shares', "
                "'known' and 'trusted'"
            )

    def state_dict(self) -> dict[str, str]:
        return {str(node): name for node, name in self.known.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.known = {int(node): str(name) for node, name in state.items()}


def sent_name(reply: Message, key: str) -> str:
    """The name in a reply, cut short and plain; empty where there is none.

    It is shown in logs, pages and chats, so that it may not be a link or call everybody there by its signs.
    A number, such as a partition's, is written as a whole one where it is whole.
    """
    records: list[Any] = [*reply.content.config_records.values(), *reply.content.metric_records.values()]
    for record in records:
        value = record.get(key)
        if isinstance(value, str):
            text = printable(value.encode("utf-8", "backslashreplace").decode("utf-8"))
            plain = "".join("?" if unicodedata.category(c)[0] in "PS" and c not in MARKS else c for c in text)
            shown = plain.strip()[:LONGEST].strip()
            return shown if looks(shown) else ""
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(told := number(value)):
            return f"{told:.15g}"
    return ""


def looks(name: str) -> str:
    """A name as a reader sees it: without case, width, spaces, accents and what is not seen.

    >>> looks("Site 1") == looks("site\\u00a01\\ufe0f"), looks("site 1") == looks("site 2")
    (True, False)
    """
    plain = unicodedata.normalize("NFKD", name).casefold()
    unseen = ("Mn", "Me", "Zs", "Zl", "Zp", "Cc", "Cf")
    return "".join(c for c in plain if unicodedata.category(c) not in unseen and c not in FILLERS)
