"""What is remembered of clients: a row of numbers by id, in small parts, so that a round costs what its clients do."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Columns = NDArray[np.float64]
Part = Mapping[str, bytes]

PARTS = 4096  # of 250 clients each where a million are known: a round copies the parts of its clients alone
MOST = 1_000_000  # clients that come before those that none of their rounds saw are forgotten
EMPTY: tuple[Part, ...] = ({},) * PARTS


class Remembered(Mapping[str, tuple[float, ...]]):
    """A row of numbers for each client, by id; it never changes.

    Rows are set in ``recent``; once it has ``MOST`` clients it becomes ``older``, and what was older is forgotten.

    >>> first = Remembered().updated(("a", "b"), [[1.0, 2.0], [10.0, 20.0]])
    >>> then = first.updated(("b", "c"), [[3.0, 4.0], [30.0, 40.0]])
    >>> dict(then) == {"a": (1.0, 10.0), "b": (3.0, 30.0), "c": (4.0, 40.0)}
    True
    >>> then.columns(("c", "new"), blank=(0.0, -1.0)).tolist()
    [[4.0, 0.0], [40.0, -1.0]]
    """

    __slots__ = ("many", "older", "recent")

    def __init__(self, recent: tuple[Part, ...] = EMPTY, many: int = 0, older: tuple[Part, ...] = EMPTY) -> None:
        self.recent, self.many, self.older = recent, many, older

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Remembered:
        """A state as it is, or made of its rows."""
        if isinstance(state, cls):
            return state
        return cls().packed({client: np.array(row, dtype=np.float64).tobytes() for client, row in state.items()})

    @classmethod
    def joined(cls, recent: Mapping[str, bytes], older: Mapping[str, bytes]) -> Remembered:
        """Made of rows as bytes; an empty one stands for a client that is gone."""
        return cls(*_with(EMPTY, recent), _with(EMPTY, older)[0])

    def __getitem__(self, client: str) -> tuple[float, ...]:
        if row := self.row(client):
            return tuple(np.frombuffer(row).tolist())
        raise KeyError(client)

    def __contains__(self, client: object) -> bool:
        return isinstance(client, str) and bool(self.row(client))

    def __iter__(self) -> Iterator[str]:
        for recent, older in zip(self.recent, self.older, strict=True):
            yield from recent
            yield from (client for client in older if client not in recent)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return self.many > 0 or any(self.older)

    def row(self, client: str, blank: bytes = b"") -> bytes:
        """The numbers of a client as bytes; ``blank`` where it is not known."""
        k = hash(client) % PARTS
        return self.recent[k].get(client) or self.older[k].get(client, blank)

    def columns(self, client_ids: Sequence[str], blank: tuple[float, ...]) -> Columns:
        """The numbers of these clients, (k, n); those of ``blank`` for one that is not known."""
        unknown = np.array(blank, dtype=np.float64).tobytes()
        rows = np.frombuffer(b"".join([self.row(client, unknown) for client in client_ids]))
        return np.ascontiguousarray(rows.reshape(len(client_ids), len(blank)).T)

    def updated(self, client_ids: Sequence[str], columns: Sequence[ArrayLike] | Columns) -> Remembered:
        """The same with new numbers of these clients."""
        rows, width = np.array(columns, dtype=np.float64).T.tobytes(), 8 * len(columns)
        return self.packed({client: rows[i * width : (i + 1) * width] for i, client in enumerate(client_ids)})

    def packed(self, rows: Mapping[str, bytes]) -> Remembered:
        """The same with these rows; without the clients whose row is empty."""
        recent, more = _with(self.recent, rows)
        many = self.many + more
        return Remembered(recent, many, self.older) if many < MOST else Remembered(EMPTY, 0, recent)

    def restored(self, past: Mapping[str, Any], names: Collection[str]) -> Remembered:
        """The same with these clients as they stood in the past; who was not known then is not known now.

        >>> first = Remembered.of({"a": (1.0,), "b": (2.0,)})
        >>> dict(first.updated(("a", "c"), [[5.0, 7.0]]).restored(first, {"b", "c"})) == {"a": (5.0,), "b": (2.0,)}
        True
        """
        then = Remembered.of(past)
        rows = {client: then.row(client) for client in names}
        forgotten = {client: b"" for client, row in rows.items() if not row}
        recent, more = _with(self.recent, rows)
        return Remembered(recent, self.many + more, _with(self.older, forgotten)[0])

    def changes(self, before: Remembered) -> dict[str, bytes] | None:
        """The rows that are others than before, empty ones for clients that are gone; None where older ones are."""
        if self.older is not before.older:
            return None
        pairs = [(new, old) for new, old in zip(self.recent, before.recent, strict=True) if new is not old]
        rows = {client: row for new, old in pairs for client, row in new.items() if old.get(client) is not row}
        return rows | {client: b"" for new, old in pairs for client in old if client not in new}


def _with(parts: tuple[Part, ...], rows: Mapping[str, bytes]) -> tuple[tuple[Part, ...], int]:
    """Parts with these rows, and by how many clients there are more; the same object where nothing changes."""
    made, changed, more = list(parts), dict[int, dict[str, bytes]](), 0
    for client, row in rows.items():
        k = hash(client) % PARTS
        if not row and client not in made[k]:
            continue
        if k not in changed:
            made[k] = changed[k] = dict(made[k])
        part = changed[k]
        more -= client in part
        if row:
            part[client] = row
            more += 1
        else:
            del part[client]
    return (tuple(made), more) if changed else (parts, 0)
