"""Data sets as tensors: features float32 in [0, 1] (images channels first) or token ids, labels int64 or float32.

Files are looked for in the folder of the configuration, then in ``FEDWARDEN_DATA``, then in ``../shared/data``; what
is not there is downloaded through ``datasets`` where the public source is known and the network allows it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ....core.errors import FedwardenError, MissingExtra
from ....core.registry import register

Array = NDArray[Any]
PUT = "put it there or point FEDWARDEN_DATA to its folder"


class DataError(FedwardenError):
    """A data set that is not there, or not as expected."""


@dataclass(frozen=True)
class Tokens:
    """The ids of a vocabulary that are no words: the one that hides a token, and all of them."""

    mask: int
    special: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test data; ``clients`` maps the clients of a given partition to rows of the training data.

    Features are float32, images channels first; or token ids, int64. Labels are what the task says: classes (int64),
    or numbers (float32). ``classes`` is what a model has to choose from: classes, or the tokens of a vocabulary, which
    ``tokens`` tells of; 1 where it gives a number. ``names`` are the names of the clients, where they have any, and
    ``labels`` those of the classes; ``columns`` has the place in a row of features of each column of numbers.
    """

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor
    classes: int
    clients: tuple[NDArray[np.int64], ...] | None = None
    tokens: Tokens | None = None
    names: tuple[str, ...] | None = None
    labels: tuple[str, ...] | None = None
    columns: Mapping[str, int] = field(default_factory=dict)

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers where they have none."""
        return self.labels or tuple(map(str, range(self.classes)))

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x_train.shape[1:])

    def holder(self, row: int) -> str:
        """The client that a row of the training data belongs to, in words."""
        for i, rows in enumerate(self.clients or ()):
            if row in rows:
                return f"client {self.names[i] if self.names else i}"
        return f"training sample {row}"


def folders(folder: str | None = None) -> list[Path]:
    """Where data files are looked for, in order."""
    places = [folder, os.environ.get("FEDWARDEN_DATA"), "../shared/data"]
    return [Path(p).expanduser() for p in places if p]


def locate(name: str, folder: str | None) -> Path:
    """The file or folder of that name in the first data folder that has it."""
    for place in folders(folder):
        if (place / name).exists():
            return place / name
    raise DataError(f"no data file {name} in {_looked(folder)}; {PUT}")


def _looked(folder: str | None) -> str:
    """Where data files are looked for, in words."""
    return ", ".join(str(p) if p.is_absolute() else f"{p} ({os.path.abspath(p)})" for p in folders(folder))


def find(
    name: str,
    folder: str | None,
    download: Callable[[], dict[str, Array]] | None = None,
    needs: Sequence[str] = ("x_train", "y_train", "x_test", "y_test"),
) -> dict[str, Array]:
    """The arrays of a .npz file, from the first data folder that has it, else from its public source."""
    for place in folders(folder):
        if (place / name).is_file():
            try:
                with np.load(place / name, allow_pickle=False) as file:
                    arrays = {key: file[key] for key in file.files}
            except (OSError, ValueError, EOFError, AttributeError, BadZipFile) as error:
                words = "is no .npz file of plain arrays, without objects, as numpy.savez writes them"
                raise DataError(f"{place / name} {words}") from error
            if missing := [key for key in needs if key not in arrays]:
                own = "" if download else '; other names are set with features = "x_train", label = "y_train"'
                raise DataError(
                    f"{place / name} needs the arrays {', '.join(missing)}; it has {', '.join(arrays)}{own}"
                )
            return arrays
    looked = _looked(folder)
    if download is None:
        raise DataError(f"no data file {name} in {looked}; {PUT}")
    try:
        return download()
    except MissingExtra as error:
        raise MissingExtra(f"no data file {name} in {looked}; {PUT}; or let it be downloaded: {error}") from error
    except Exception as error:
        raise DataError(
            f"no data file {name} in {looked}, and its download failed ({type(error).__name__}: {error}); "
            "put the file there, point FEDWARDEN_DATA to its folder, or try again with a network"
        ) from error


def from_hub(path: str, config: str | None = None, image: str = "image") -> dict[str, Array]:
    """Train and test images of a data set of the Hugging Face hub."""
    if find_spec("datasets") is None:
        raise MissingExtra(f"{path} must be downloaded; install it with: pip install 'fedwarden[data]'")
    splits = import_module("datasets").load_dataset(path, config)
    out: dict[str, Array] = {}
    for split in ("train", "test"):
        out[f"x_{split}"] = np.stack([np.asarray(i) for i in splits[split][image]])
        out[f"y_{split}"] = np.asarray(splits[split]["label"]).reshape(-1)
    return out


def images(arrays: dict[str, Array], clients: list[Array] | None = None) -> Dataset:
    """A data set from uint8 images, channels last or absent."""

    def pixels(x: Array) -> Tensor:
        x = x[..., None] if x.ndim == 3 else x
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).to(torch.float32).div_(255)

    labels = [torch.from_numpy(arrays[k].reshape(-1).astype(np.int64)) for k in ("y_train", "y_test")]
    classes = int(max(label.max() for label in labels)) + 1
    given = None if clients is None else tuple(np.asarray(rows, dtype=np.int64) for rows in clients)
    return Dataset(pixels(arrays["x_train"]), labels[0], pixels(arrays["x_test"]), labels[1], classes, given)


def column(values: list[str], train: Array, codes: bool) -> Array:
    """One standardised number, or categories, one-hot or as their number ("?" is a category of its own)."""
    try:
        number = np.array([float(v) for v in values])
    except ValueError:
        known = sorted(set(values))
        if not codes:
            return np.stack([np.array(values) == k for k in known], axis=1).astype(np.float64)
        number = np.searchsorted(known, values).astype(np.float64)
    scale = number[train].std() or 1.0
    return np.asarray((number - number[train].mean()) / scale)[:, None]


def by_owner(owner: Array) -> list[Array]:
    """Rows of each client from a column that names the client of each row."""
    return [np.flatnonzero(owner == client) for client in np.unique(owner)]


def scikit_learn(name: str) -> tuple[Array, Array]:
    """Features and labels of one of scikit-learn's data sets.

    Digits are read from the table that it ships: with importing the library every run would begin a second later.
    """
    package = find_spec("sklearn")
    if name == "digits" and package and package.origin:
        table = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        if table.is_file():
            numbers = np.loadtxt(table, delimiter=",")
            return numbers[:, :-1], numbers[:, -1]
    x, y = getattr(import_module("sklearn.datasets"), f"load_{name}")(return_X_y=True)
    return x, y


@register("dataset", "digits")
def digits(folder: str | None = None) -> Dataset:
    """scikit-learn's 1,797 real 8x8 digits, shipped inside the package: 1,437 to train, 360 to test."""
    x, y = scikit_learn("digits")
    order = np.random.default_rng(0).permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 1, 8, 8), y[order].astype(np.int64)
    a, b, c, d = (torch.from_numpy(part) for part in (x[:1437], y[:1437], x[1437:], y[1437:]))
    return Dataset(a, b, c, d, classes=10)


@register("dataset", "diabetes")
def diabetes(folder: str | None = None) -> Dataset:
    """scikit-learn's 442 diabetes patients, for the task regression: 354 to train, 88 to test; labels standardised."""
    x, y = scikit_learn("diabetes")
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / x[order[:354]].std(axis=0), y[order]
    y = (y - y[:354].mean()) / y[:354].std()
    a, b, c, d = (torch.from_numpy(part.astype(np.float32)) for part in (x[:354], y[:354], x[354:], y[354:]))
    return Dataset(a, b, c, d, classes=1)


@register("dataset", "mnist")
def mnist(folder: str | None = None, standardised: bool = False) -> Dataset:
    """MNIST, 60,000 / 10,000, 28x28; ``standardised`` to mean 0 and deviation 1 over all pixels where asked."""
    data = images(find("mnist.npz", folder, lambda: from_hub("ylecun/mnist")))
    if not standardised:
        return data
    return replace(data, x_train=(data.x_train - 0.1307) / 0.3081, x_test=(data.x_test - 0.1307) / 0.3081)


@register("dataset", "fashion_mnist")
def fashion_mnist(folder: str | None = None) -> Dataset:
    """Fashion-MNIST, 60,000 / 10,000, 28x28."""
    return images(find("fashion_mnist.npz", folder, lambda: from_hub("zalando-datasets/fashion_mnist")))


@register("dataset", "cifar10")
def cifar10(folder: str | None = None) -> Dataset:
    """CIFAR-10, 32x32 colour: the first 18,000 / 3,000 images where cifar10_21k.npz is at hand, else all of it."""
    return images(find("cifar10_21k.npz", folder, lambda: from_hub("uoft-cs/cifar10", image="img")))
