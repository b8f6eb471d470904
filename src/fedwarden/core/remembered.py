"""What is remembered of clients as columns of numbers, since a thousand small tuples a round cost more than a guard."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Columns = NDArray[np.float64]
Ids = tuple[str, ...]
Joined = tuple[Ids, Mapping[str, int], NDArray[np.intp]]
_latest: tuple[tuple[Ids, Ids, Joined], ...] = ()  # to hash a thousand names takes longer than to look for one


def joined(ids: Ids, others: Ids) -> Joined:
    """These clients and then those of the others that are new; where each stands; and where the others stand.

    >>> ids, place, at = joined(("a", "b"), ("b", "c"))
    >>> ids, place, at.tolist()
    (('a', 'b', 'c'), {'a': 0, 'b': 1, 'c': 2}, [1, 2])
    """
    global _latest
    for first, second, found in _latest:
        if first is ids and second is others:
            return found
    found = _joined(ids, others)
    _latest = ((ids, others, found), *_latest[:3])
    return found


@lru_cache(maxsize=16)  # the watches of a guard ask for the same clients one after another
def _joined(ids: Ids, others: Ids) -> Joined:
    every, place = joined((), ids)[:2] if ids else ((), {})
    if not all(map(place.__contains__, others)):
        every, place = numbered(ids + others)
    one_by_one = map(place.__getitem__, others)
    at = np.arange(len(others)) if every is others else np.fromiter(one_by_one, np.intp, len(others))
    at.flags.writeable = False  # shared by all who ask
    return every, place, at


def numbered(ids: Ids) -> tuple[Ids, Mapping[str, int]]:
    """Each of these clients once, and where it stands.

    >>> numbered(("b", "a", "b"))
    (('b', 'a'), {'b': 0, 'a': 1})
    """
    place = dict(zip(ids, range(len(ids)), strict=True))
    return (ids, place) if len(place) == len(ids) else numbered(tuple(place))


def same_tuple(ids: Ids) -> Ids:
    """These clients as the tuple that was first seen of them: whether it is the same is quicker to tell than equality.

    >>> first = same_tuple(("a", "b"))
    >>> same_tuple(tuple("ab")) is first
    True
    """
    every = joined((), ids)[0]
    return every if len(every) == len(ids) else ids


class Remembered(Mapping[str, tuple[float, ...]]):
    """A row of numbers for each client, by id; it never changes.

    >>> first = Remembered.of({}, 2).updated(("a", "b"), [[1.0, 2.0], [10.0, 20.0]])
    >>> then = first.updated(("b", "c"), [[3.0, 4.0], [30.0, 40.0]])
    >>> dict(then)
    {'a': (1.0, 10.0), 'b': (3.0, 30.0), 'c': (4.0, 40.0)}
    >>> then.columns(("c", "new"), blank=(0.0, -1.0)).tolist()
    [[4.0, 0.0], [40.0, -1.0]]
    """

    __slots__ = ("_columns", "_ids", "_place")

    def __init__(self, ids: Ids, place: Mapping[str, int], columns: Columns) -> None:
        self._ids, self._place, self._columns = ids, place, columns

    @classmethod
    def of(cls, state: Mapping[str, Any], width: int) -> Remembered:
        """A state as it is, or made of the rows that a checkpoint holds."""
        if isinstance(state, cls):
            return state
        ids, place, _ = joined((), tuple(state))
        rows = np.array([tuple(row) for row in state.values()], dtype=np.float64).reshape(-1, width)
        return cls(ids, place, np.ascontiguousarray(rows.T))

    def __getitem__(self, client: str) -> tuple[float, ...]:
        return tuple(self._columns[:, self._place[client]].tolist())

    def __contains__(self, client: object) -> bool:
        return client in self._place

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def column(self, k: int) -> Columns:
        """One number of every client."""
        return np.asarray(self._columns[k])

    def columns(self, client_ids: Ids, blank: tuple[float, ...]) -> Columns:
        """The numbers of these clients, (k, n); those of ``blank`` for one that is not known."""
        if client_ids is self._ids or client_ids == self._ids:
            return self._columns
        known = len(self._ids)
        every, _, at = joined(self._ids, client_ids)
        if len(every) == known:
            return self._columns.take(at, axis=1)
        found = np.repeat(np.asarray(blank, dtype=np.float64)[:, None], len(at), axis=1)
        found[:, at < known] = self._columns[:, at[at < known]]
        return found

    def updated(self, client_ids: Ids, columns: Sequence[ArrayLike]) -> Remembered:
        """The same with new numbers of these clients."""
        if client_ids is self._ids or client_ids == self._ids:
            return Remembered(self._ids, self._place, np.array(columns, dtype=np.float64))
        every, place, at = joined(self._ids, client_ids)
        table = np.empty((len(columns), len(every)))
        table[:, : len(self._ids)] = self._columns
        for row, values in zip(table, columns, strict=True):  # half of the time of all at once
            row[at] = values
        return Remembered(every, place, table)

    def restored(self, past: Mapping[str, Any], names: Collection[str]) -> Remembered:
        """The same with these clients as they stood in the past; who was not known then is not known now.

        >>> first = Remembered.of({"a": (1.0,), "b": (2.0,)}, 1)
        >>> dict(first.updated(("a", "b", "c"), [[5.0, 6.0, 7.0]]).restored(first, {"b", "c"}))
        {'a': (5.0,), 'b': (2.0,)}
        """
        kept = tuple(client for client in self._ids if client not in names or client in past)
        back = tuple(client for client in names if client in past)
        none = (math.nan,) * len(self._columns)
        whole = Remembered(*joined((), kept)[:2], self.columns(kept, none))
        return whole.updated(back, list(Remembered.of(past, len(none)).columns(back, none))) if back else whole
