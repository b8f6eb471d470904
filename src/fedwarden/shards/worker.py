"""What one worker does: it holds some columns of all clients of a round, and folds them. Nothing here knows of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..core.notes import Note
from ..core.stats import Weights
from ..updates.sketch import Hashing
from ..updates.updates import Updates

Numbers = NDArray[np.floating[Any]]
Index = tuple[int, ...]
"""The rows that a call is about, by the numbers under which they were taken."""
Fold = str | Callable[..., torch.Tensor]
"""What makes an update of rows: a method of theirs, by name, or a function of them."""


def row_fault(row: NDArray[Any], d: int, dtype: str) -> Note | None:
    """Why an array is not the update of a client, or None; one of float16 is read as it is.

    >>> print(row_fault(np.zeros(3, np.float32), 4, "float32"))
    its update has shape (3,); expected (4,)
    >>> print(row_fault(np.zeros(4), 4, "float32"))
    its update has dtype float64; expected float32
    """
    if row.shape != (d,):
        return Note.of("update_shape", shape=row.shape, expected=(d,))
    if row.dtype not in (np.dtype(dtype), np.float16):
        return Note.of("update_dtype", dtype=str(row.dtype), expected=dtype)
    return None


def read_row(row: Any, d: int, dtype: str) -> Numbers | Note:
    """An array or tensor as d numbers over the same memory, or why it cannot be used."""
    try:
        array = row.detach().cpu().numpy() if isinstance(row, torch.Tensor) else np.asarray(row)
    except Exception as error:  # whatever a client sent
        return Note.of("update_unreadable", error=type(error).__name__, words=str(error))
    return row_fault(array, d, dtype) or array


def open_row(path: str, d: int, dtype: str) -> Numbers | Note:
    """A .npy file's d numbers through a memory map, or why it cannot be used."""
    try:
        if not Path(path).is_file():
            raise FileNotFoundError(f"no file at {path}")
        row = np.lib.format.open_memmap(path, mode="r")  # reads no objects and no archives
    except Exception as error:  # whatever a client put there
        return Note.of("update_unreadable", error=type(error).__name__, words=str(error))
    return row_fault(row, d, dtype) or row


class Worker:
    """Columns [start, stop) of the clients of one round.

    The survey that was read last is kept with its rows, as in one process, so that the sum which it tells of is not
    read again.
    """

    def __init__(self, start: int, stop: int, d: int, dtype: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.start, self.stop, self.d, self.dtype = start, stop, d, dtype

    def begin(self, base: str | None, spool: str | None) -> None:
        """A new round: the last one's rows go. ``spool`` is the folder in which rows that are handed over are kept."""
        self.spool = spool
        self.rows: dict[int, Numbers] = {}
        self.index: Index = ()
        self.view = Updates.empty(self.stop - self.start)
        self.base = None if base is None else torch.from_numpy(self._columns(base).astype(self.dtype))

    def take(self, row: int, columns: Numbers) -> None:
        """Keep the columns that were handed over."""
        if self.spool is None:
            self.rows[row] = columns.copy()  # Ray's own copy goes when this call ends
            return
        np.save(self._spooled(row), columns)
        self.rows[row] = np.load(self._spooled(row), mmap_mode="r", allow_pickle=False)

    def open(self, files: Mapping[int, str | None]) -> dict[int, Note]:
        """Open files at the columns of this worker, or its own of rows that were handed over; returns faults by row."""
        faults = {}
        for row, path in files.items():
            if path is not None:
                found = open_row(path, self.d, self.dtype)
            elif self.spool is not None:
                found = open_row(str(self._spooled(row)), self.stop - self.start, self.dtype)
            else:
                found = Note.of("update_gone")
            if isinstance(found, Note):
                faults[row] = found
            else:
                self.rows[row] = found if path is None else found[self.start : self.stop]
        return faults

    def survey(self, index: Index, centre: Weights, shares: Weights, spread: bool) -> NDArray[np.float64]:
        """(3, n): this worker's part of the squared norms, lengths and distances."""
        rows = self._only(index)
        survey = rows.survey(centre > 0, shares, spread)
        self.view = rows.knowing(survey)
        return np.stack([survey.sq_norms, survey.sq_lengths, survey.sq_distances])

    def gram(self, index: Index, origin: int) -> NDArray[np.float64]:
        """(n + 1, n + 1): its part of the inner products about one of the rows."""
        return self._only(index).products_about(origin)

    def sample(self, index: Index, columns: NDArray[np.int64]) -> Numbers:
        """(n, k): the entries in some of its columns, which are counted from its first."""
        return np.asarray(self._only(index).sample(columns).numpy())

    def sketch(self, index: Index, hashing: Hashing) -> Numbers:
        """(n, k): its part of the sketches."""
        return np.asarray(self._only(index).sketch(hashing).numpy())

    def write(self, index: Index, fold: Fold, arguments: tuple[Any, ...], path: str, offset: int, add: bool) -> None:
        """Write its part of what a fold makes of the rows, with the base added or not, to its place in a file."""
        size = self.stop - self.start
        made = torch.zeros(size, dtype=self.view.dtype)
        if index:
            rows = self._only(index)
            made = getattr(rows, fold)(*arguments) if isinstance(fold, str) else fold(rows, *arguments)
        if add and self.base is not None:
            made = made + self.base
        part = np.ascontiguousarray(made.numpy(), dtype=self.dtype)
        with Path(path).open("r+b") as file:
            file.seek(offset + self.start * part.itemsize)
            file.write(part.data)
            file.flush()
            os.fsync(file.fileno())

    def _only(self, index: Index) -> Updates:
        """These rows, with what was read of them where they are those of the last call."""
        if index != self.index:
            self.view = Updates.of([self.rows[i] for i in index], self.base)
            self.index = index
        return self.view

    def _columns(self, path: str) -> Numbers:
        """This worker's columns of the base, whose fault is nobody's but the server's."""
        found = open_row(path, self.d, self.dtype)
        if isinstance(found, Note):
            raise ValueError(f"the base {path}: {found}")
        return found[self.start : self.stop]

    def _spooled(self, row: int) -> Path:
        return Path(str(self.spool)) / f"{row}-{self.start}.npy"
