"""What is remembered of clients as columns of numbers, since a thousand small tuples a round cost more than a guard."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Columns = NDArray[np.float64]


class Remembered(Mapping[str, tuple[float, ...]]):
    """A row of numbers for each client, by id; it never changes.

    >>> first = Remembered.of({}, 2).updated(("a", "b"), [[1.0, 2.0], [10.0, 20.0]])
    >>> then = first.updated(("b", "c"), [[3.0, 4.0], [30.0, 40.0]])
    >>> dict(then)
    {'a': (1.0, 10.0), 'b': (3.0, 30.0), 'c': (4.0, 40.0)}
    >>> then.columns(("c", "new"), blank=(0.0, -1.0)).tolist()
    [[4.0, 0.0], [40.0, -1.0]]
    """

    __slots__ = ("_ids", "_place", "_rows")

    def __init__(self, ids: tuple[str, ...], place: Mapping[str, int], rows: Columns) -> None:
        self._ids, self._place, self._rows = ids, place, rows

    @classmethod
    def of(cls, state: Mapping[str, Any], width: int) -> Remembered:
        """A state as it is, or made of the rows that a checkpoint holds."""
        if isinstance(state, cls):
            return state
        ids = tuple(state)
        rows = np.array([tuple(row) for row in state.values()], dtype=np.float64).reshape(-1, width)
        return cls(ids, {client: i for i, client in enumerate(ids)}, rows)

    def __getitem__(self, client: str) -> tuple[float, ...]:
        return tuple(self._rows[self._place[client]].tolist())

    def __contains__(self, client: object) -> bool:
        return client in self._place

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def column(self, k: int) -> Columns:
        """One number of every client."""
        return self._rows[:, k]

    def columns(self, client_ids: tuple[str, ...], blank: tuple[float, ...]) -> Columns:
        """The numbers of these clients, (k, n); those of ``blank`` for one that is not known."""
        if client_ids == self._ids:
            return self._rows.T
        at = np.array([self._place.get(client, -1) for client in client_ids], dtype=int)
        found = np.tile(np.asarray(blank, dtype=np.float64), (len(at), 1))
        found[at >= 0] = self._rows[at[at >= 0]]
        return found.T

    def updated(self, client_ids: tuple[str, ...], columns: Sequence[ArrayLike]) -> Remembered:
        """The same with new numbers of these clients."""
        rows = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
        if client_ids == self._ids:
            return Remembered(self._ids, self._place, rows)
        new = tuple(client for client in client_ids if client not in self._place)
        place = {**self._place, **{client: len(self._ids) + i for i, client in enumerate(new)}} if new else self._place
        table = np.empty((len(self._ids) + len(new), rows.shape[1]))
        table[: len(self._ids)] = self._rows
        table[[place[client] for client in client_ids]] = rows
        return Remembered(self._ids + new, place, table)

    def restored(self, past: Mapping[str, Any], names: Collection[str]) -> Remembered:
        """The same with these clients as they stood in the past; who was not known then is not known now.

        >>> first = Remembered.of({"a": (1.0,), "b": (2.0,)}, 1)
        >>> dict(first.updated(("a", "b", "c"), [[5.0, 6.0, 7.0]]).restored(first, {"b", "c"}))
        {'a': (5.0,), 'b': (2.0,)}
        """
        kept = tuple(client for client in self._ids if client not in names or client in past)
        back = tuple(client for client in names if client in past)
        none = (math.nan,) * self._rows.shape[1]
        whole = Remembered(kept, {client: i for i, client in enumerate(kept)}, self.columns(kept, none).T)
        return whole.updated(back, list(Remembered.of(past, len(none)).columns(back, none))) if back else whole
