"""Data of one's own as a :class:`Dataset`: whose each row is, what is held back to test on, and what is wrong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...core.registry import register
from ...core.types import name_fault
from ...core.words import short
from .sources import Array, DataError, Dataset, by_owner

Mask = NDArray[np.bool_]
Samples = Any
"""A pair (features, labels) of tensors or arrays, or a data set of torch with such pairs as its items."""
Clients = Mapping[str, Samples] | Sequence[Samples]

TEST = 0.2  # the share that is held back to test on where there is no test set


@dataclass(frozen=True, eq=False)
class Table:
    """Rows as they were found: features (n, ...), labels (n,), whose each row is, and which are to test on.

    ``places`` are the rows' numbers where they come from; ``classes`` names labels that are numbers from 0 on, and
    ``columns`` has the place of each feature that is a column of numbers.
    """

    x: Array
    labels: Array
    owners: Array | None
    test: Mask
    places: Array
    classes: tuple[str, ...] | None = None
    columns: Mapping[str, int] = field(default_factory=dict)


def whose(row: int, owners: Array | None, places: Array) -> str:
    """A row in words.

    >>> whose(1, np.array(["a", "b"]), np.array([1, 2]))
    'client b, row 2'
    """
    owner = "" if owners is None else str(owners[row])
    return f"{f'client {owner}, ' if owner else ''}row {places[row]}"


def held_back(owners: Array | None, n: int, share: float, where: str) -> Mask:
    """True for the rows to test on: a random share of every client's rows, always the same.

    >>> held_back(np.array(["a", "b", "a", "a", "a", "a", "b"]), 7, 0.2, "mine.csv").sum()
    np.int64(1)
    """
    if not 0 < share < 1:
        raise DataError(f"{where}: test is a share of the rows between 0 and 1, or the name of a test set; got {share}")
    rng, test = np.random.default_rng(0), np.zeros(n, dtype=bool)
    for rows in [np.arange(n)] if owners is None else by_owner(owners):
        test[rng.permutation(rows)[: min(round(share * len(rows)), len(rows) - 1)]] = True
    if not test.any():
        raise DataError(f"{where}: a share of {share} of {n} rows is none to test on; raise test, or name a test set")
    return test


def classes_of(table: Table, numbers: bool, where: str) -> tuple[Tensor, int, tuple[str, ...] | None]:
    """Labels as the tasks take them, how many classes, and their names: words are numbered in alphabetical order.

    Whole numbers are classes, others are numbers to predict, and all are with ``numbers``.
    """
    found = table.labels
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1 or len(found) != len(table.x):
        raise DataError(f"{where}: expected one label for each of {len(table.x)} rows; got shape {found.shape}")
    if found.dtype.kind in "USO":
        known, codes = np.unique(found.astype(str), return_inverse=True)
        if numbers:
            raise DataError(f"{where}: expected numbers as labels; got words such as {known[0]!r}")
        return torch.from_numpy(codes.astype(np.int64)), len(known), tuple(map(str, known))
    if numbers or found.dtype.kind == "f":
        _refuse(~np.isfinite(found), table, "a finite label", found, where)
        return torch.from_numpy(found.astype(np.float32)), 1, None
    if found.dtype.kind not in "iub":
        raise DataError(f"{where}: expected labels that are whole numbers, numbers or words; got {found.dtype}")
    _refuse(found < 0, table, "a label of at least 0", found, where)
    return torch.from_numpy(found.astype(np.int64)), int(found.max()) + 1, table.classes


def dataset_of(table: Table, where: str, classes: int | None = None, numbers: bool = False) -> Dataset:
    """A data set from rows; ``classes`` is how many there are, where not all of them occur."""
    n = len(table.x)
    if not n or table.test.all():
        raise DataError(f"{where}: expected rows to train on; got none")
    if table.x.dtype.kind not in "fiub":
        raise DataError(f"{where}: expected features that are numbers; got {table.x.dtype}")
    y, seen, labels = classes_of(table, numbers, where)
    x = torch.from_numpy(np.ascontiguousarray(table.x, dtype=np.float32))
    _refuse(~x.flatten(1).isfinite().all(dim=1).numpy(), table, "finite features", "NaN or Inf", where)
    if classes is not None and not y.is_floating_point():
        _refuse(y.numpy() >= classes, table, f"a label from 0 to {classes - 1}", table.labels, where)
    names, owned = _clients(table, where)
    _check_names(names or (), where)
    train = torch.from_numpy(~table.test)
    test = ~train
    if labels is not None:  # classes that do not occur have no name
        labels = (*labels, *map(str, range(len(labels), classes or 0)))
    return Dataset(
        x[train], y[train], x[test], y[test], classes or seen, owned, names=names, labels=labels, columns=table.columns
    )


def of_clients(clients: Clients, test: Samples | float | None = None, numbers: bool = False) -> Dataset:
    """A data set from the samples of each client; a list numbers the clients from 0 on.

    ``test`` is a test set, or the share of every client's samples that is held back for one.
    """
    named = clients if isinstance(clients, Mapping) else {str(i): data for i, data in enumerate(clients)}
    if not named:
        raise DataError("clients: expected the samples of at least one client; got none")
    _check_names(map(str, named), "clients")
    parts = [_pair(data, f"client {name}") for name, data in named.items()]
    share = TEST if test is None else test
    own = [] if isinstance(share, float | int) else [_pair(share, "the test set")]
    shape = parts[0][0].shape[1:]
    kind = parts[0][1].dtype.kind
    for who, (x, y) in zip([*(f"client {name}" for name in named), "the test set"], [*parts, *own], strict=False):
        if x.shape[1:] != shape:
            raise DataError(f"{who}: expected samples of shape {shape}, as the first client has; got {x.shape[1:]}")
        if not numbers and "f" in (kind, y.dtype.kind) and kind != y.dtype.kind:
            raise DataError(
                f"{who}: expected labels of {parts[0][1].dtype}, as the first client has; got {y.dtype}: whole numbers "
                "are classes, others are for regression"
            )
    sizes = [len(x) for x, _ in [*parts, *own]]
    owners = np.repeat(np.array([*map(str, named), ""]), [*sizes, 0][: len(named) + 1])
    apart = np.arange(len(owners)) >= sum(sizes[: len(named)])
    table = Table(
        np.concatenate([x for x, _ in [*parts, *own]]),
        np.concatenate([y for _, y in [*parts, *own]]),
        owners,
        apart if own else held_back(owners, len(owners), float(share), "test"),
        np.concatenate([np.arange(size) for size in sizes]),
    )
    data = dataset_of(table, "clients", numbers=numbers)
    order = [data.names.index(str(name)) for name in named] if data.names and data.clients else []
    return replace(
        data, names=tuple(map(str, named)), clients=tuple(data.clients[i] for i in order) if data.clients else None
    )


def check(data: object, where: str) -> Dataset:
    """The data set, if a model can learn from it; one line where not."""

    def expect(met: bool, expected: str, got: object) -> None:
        if not met:
            raise DataError(f"{where}: expected {expected}; got {got}")

    if not isinstance(data, Dataset):
        raise DataError(
            f"{where}: expected a Dataset, or the samples of each client by name; got {type(data).__name__}"
        )
    for part, x, y in (("training", data.x_train, data.y_train), ("test", data.x_test, data.y_test)):
        tensors = isinstance(x, Tensor) and isinstance(y, Tensor)
        expect(tensors, f"tensors as {part} data", f"{type(x).__name__} and {type(y).__name__}")
        shapes = f"the shapes {tuple(x.shape)} and {tuple(y.shape)}"
        expect(0 < len(x) == len(y) and y.ndim == 1, f"{part} samples with one label each", shapes)
        known = {x.dtype, y.dtype} <= {torch.float32, torch.int64}
        wanted = "float32 features, or int64 token ids, and int64 classes, or float32 numbers, as labels"
        expect(known, wanted, f"{x.dtype} and {y.dtype} in the {part} data")
        if not y.is_floating_point() and len(bad := torch.nonzero((y < 0) | (y >= data.classes))):
            who = data.holder(int(bad[0])) if part == "training" else f"test sample {int(bad[0])}"
            raise DataError(
                f"{where}: expected labels from 0 to {data.classes - 1} ({data.classes} classes); "
                f"{who} has {int(y[bad[0]])}"
            )
    shapes = f"{tuple(data.x_train.shape[1:])} and {tuple(data.x_test.shape[1:])}"
    expect(data.x_test.shape[1:] == data.x_train.shape[1:], "training and test samples of one shape", shapes)
    expect(len(data.class_names) == data.classes, f"a name for each of {data.classes} classes", data.labels)
    clients = data.clients or ()
    if data.names is not None:
        expect(len(data.names) == len(clients), f"a name for each of {len(clients)} clients", len(data.names))
        known = len({name for name in data.names if isinstance(name, str) and name}) == len(data.names)
        expect(known, "a different text as the name of each client", f"{data.names!r:.60}")
    _check_names(data.names or (), where)
    for i, rows in enumerate(clients):
        if len(rows) and not 0 <= min(rows) <= max(rows) < len(data.y_train):
            who = f"client {data.names[i] if data.names else i}"
            raise DataError(f"{where}: {who}: expected rows from 0 to {len(data.y_train) - 1}; got others")
    return data


def _check_names(names: Iterable[str], where: str) -> None:
    for name in names:
        if fault := name_fault(name):
            raise DataError(f"{where}: client {short(name, 40)}: {fault}")


def _clients(table: Table, where: str) -> tuple[tuple[str, ...] | None, tuple[NDArray[np.int64], ...] | None]:
    """The names of the clients and their rows of the training data, in the order of the names, or of the numbers."""
    if table.owners is None:
        return None, None
    owners = np.asarray(table.owners)
    if owners.ndim != 1 or len(owners) != len(table.x) or owners.dtype.kind not in "iubUS":
        raise DataError(
            f"{where}: expected a client for each of {len(table.x)} rows, as a word or a whole number; got shape "
            f"{owners.shape} of {owners.dtype}"
        )
    owners = owners.astype(str)
    _refuse((np.char.strip(owners) == "") & ~table.test, table, "the name of a client", "none", where)
    kept = owners[~table.test]
    found = [str(name) for name in np.unique(kept)]
    names = sorted(found, key=int) if all(name.isdecimal() for name in found) else found
    return tuple(names), tuple(np.flatnonzero(kept == name) for name in names)


def _refuse(bad: Array, table: Table, expected: str, values: Array | str, where: str) -> None:
    """Raise on the first row that is bad; ``values`` are those of all rows, or what to say of any."""
    if bad.any():
        row = int(np.argmax(bad))
        got = values if isinstance(values, str) else repr(values.reshape(-1)[row].item())
        raise DataError(f"{where}: {whose(row, table.owners, table.places)}: expected {expected}; got {got}")


def _pair(data: Samples, who: str) -> tuple[Array, Array]:
    """Features and labels as arrays; integers of 8 bits are scaled to [0, 1]."""
    try:
        if isinstance(data, tuple) and len(data) == 2:
            x, y = data
        elif hasattr(data, "tensors"):
            x, y = data.tensors
        elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            items = [data[i] for i in range(len(data))]
            x = np.stack([_array(sample) for sample, _ in items]) if items else np.empty((0, 1))
            y = np.array([_array(label) for _, label in items])
        else:
            raise TypeError(f"got {type(data).__name__}")
        x, y = _array(x), _array(y)
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
        raise DataError(
            f"{who}: expected a pair (features, labels) or a data set of torch with such pairs: {error}"
        ) from error
    if x.ndim and not len(x):
        raise DataError(f"{who}: expected at least one sample; got none")
    if x.ndim < 2 or y.shape not in ((len(x),), (len(x), 1)):
        raise DataError(
            f"{who}: expected features with a row for each sample, of shape (n, d) or (n, ...), and labels of shape "
            f"(n,); got shapes {x.shape} and {y.shape}"
        )
    return (x / np.float32(255) if x.dtype == np.uint8 else x), y.reshape(-1)


def _array(value: object) -> Array:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)


@register("dataset", "memory")
def memory(folder: str | None = None) -> Dataset:
    """What a program has given to ``fedwarden.simulate``; no file can name it."""
    raise DataError("this run was made from data in a program's memory, by fedwarden.simulate; call that again")
