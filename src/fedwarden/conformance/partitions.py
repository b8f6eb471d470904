"""The laws of a partition: a data set, a number of clients and a generator in, the rows of each client out."""

from __future__ import annotations

import numpy as np
import torch

from ..sim.data.partition import Partition, Rows
from ..sim.data.sources import Dataset
from .component import Component
from .law import laws, require

ROWS, CLASSES, CLIENTS = 1200, 4, (2, 5, 10)

subject = Component.make


def data() -> Dataset:
    """Random samples of four classes that come with twelve clients."""
    rng = np.random.default_rng(0)
    x, y = torch.from_numpy(rng.random((ROWS, 3), dtype=np.float32)), torch.from_numpy(rng.integers(CLASSES, size=ROWS))
    given = tuple(np.sort(rows) for rows in np.split(rng.permutation(ROWS), 12))
    return Dataset(x, y, x[:40], y[:40], CLASSES, given)


def split(partition: Partition, n: int, seed: int = 1) -> Rows:
    """The rows of n clients."""
    return partition(data(), n, np.random.default_rng(seed))


def one_part_each(partition: Partition) -> None:
    """Every client has rows of the training data, as whole numbers."""
    for n in CLIENTS:
        parts = split(partition, n)
        require(len(parts) == n, f"expected {n} parts; got {len(parts)}")
        for part in map(np.asarray, parts):
            right = part.ndim == 1 and len(part) and np.issubdtype(part.dtype, np.integer)
            require(right, f"n={n}: expected whole numbers for every client; got {len(part)} of {part.dtype}")
            inside = part.min() >= 0 and part.max() < ROWS
            require(inside, f"n={n}: expected rows from 0 to {ROWS - 1}; got {part.min()} to {part.max()}")


def no_row_twice(partition: Partition) -> None:
    """No row is held twice."""
    for n in CLIENTS:
        rows = np.concatenate(split(partition, n))
        twice = len(rows) - len(np.unique(rows))
        require(not twice, f"n={n}: expected every row once at most; got {twice} more")


def generator_decides(partition: Partition) -> None:
    """The generator that is given decides, and no other."""
    np.random.seed(0)  # noqa: NPY002 -- the generator that must not matter
    a = split(partition, 5)
    np.random.seed(5)  # noqa: NPY002
    b = split(partition, 5)
    require(_equal(a, b), "expected the same rows with the same generator; got others")


def random_rows(partition: Partition) -> None:
    """Another generator gives other rows."""
    require(not _equal(split(partition, 5, 1), split(partition, 5, 2)), "expected other rows; got the same")


def input_untouched(partition: Partition) -> None:
    """The data set is only read."""
    given, before = data(), data()
    partition(given, 5, np.random.default_rng(1))
    alike = torch.equal(given.y_train, before.y_train) and torch.equal(given.x_train, before.x_train)
    require(alike, "expected the data set as it was; got another")


def _equal(a: Rows, b: Rows) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


LAWS = laws(one_part_each, no_row_twice, generator_decides, random_rows, input_untouched)
