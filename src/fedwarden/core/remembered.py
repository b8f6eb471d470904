"""What is remembered of clients as columns of numbers, since a thousand small tuples a round cost more than a guard."""

from __future__ import annotations

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

    __slots__ = ("_columns", "_place")

    def __init__(self, place: Mapping[str, int], columns: Columns) -> None:
        self._place, self._columns = place, columns

    @classmethod
    def of(cls, state: Mapping[str, Any], width: int) -> Remembered:
        """A state as it is, or made of the rows that a checkpoint holds."""
        if isinstance(state, cls):
            return state
        rows = np.array([tuple(row) for row in state.values()], dtype=np.float64).reshape(-1, width)
        return cls({client: i for i, client in enumerate(state)}, rows.T)

    def __getitem__(self, client: str) -> tuple[float, ...]:
        return tuple(self._columns[:, self._place[client]].tolist())

    def __contains__(self, client: object) -> bool:
        return client in self._place

    def __iter__(self) -> Iterator[str]:
        return iter(self._place)

    def __len__(self) -> int:
        return len(self._place)

    def column(self, k: int) -> Columns:
        """One number of every client."""
        return np.asarray(self._columns[k])

    def columns(self, client_ids: Sequence[str], blank: tuple[float, ...]) -> Columns:
        """The numbers of these clients, (k, n); those of ``blank`` for one that is not known."""
        at = [self._place.get(client, -1) for client in client_ids]
        return np.column_stack([self._columns, blank])[:, at]

    def updated(self, client_ids: Sequence[str], columns: Sequence[ArrayLike]) -> Remembered:
        """The same with new numbers of these clients."""
        place = dict(self._place)
        at = [place.setdefault(client, len(place)) for client in client_ids]
        table = np.empty((len(columns), len(place)))
        table[:, : len(self)] = self._columns
        table[:, at] = np.asarray(columns, dtype=np.float64)
        return Remembered(place, table)

    def restored(self, past: Mapping[str, Any], names: Collection[str]) -> Remembered:
        """The same with these clients as they stood in the past; who was not known then is not known now.

        >>> first = Remembered.of({"a": (1.0,), "b": (2.0,)}, 1)
        >>> dict(first.updated(("a", "b", "c"), [[5.0, 6.0, 7.0]]).restored(first, {"b", "c"}))
        {'a': (5.0,), 'b': (2.0,)}
        """
        kept = [client for client in self if client not in names or client in past]
        return Remembered.of({c: past[c] if c in names else self[c] for c in kept}, len(self._columns))
