"""Data sets of the papers, from files at hand: MedMNIST, FEMNIST, stop signs, census income."""

from __future__ import annotations

import csv
import gzip
from typing import Literal

import numpy as np
import torch

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import register
from fedwarden.sim.data.places import folders
from fedwarden.sim.data.sources import Array, DataError, Dataset, by_owner, column, find, images, locate

REPEATED = {"fnlwgt", "education"}  # columns of Adult: a weight of the survey, and what education_num says as a number
PBC = "bloodmnist_pbc.npz"


def _ink_on_black(arrays: dict[str, Array]) -> dict[str, Array]:
    """FEMNIST comes as black ink on white paper; inverted, most pixels are 0 and the small CNN learns faster."""
    return {key: 255 - value if key.startswith("x_") else value for key, value in arrays.items()}


@register("dataset", "femnist_digits")
def femnist_digits(folder: str | None = None, invert: bool = True) -> Dataset:
    """FEMNIST digits in the 101 IID clients of the PID-MADE authors, 28x28, ink bright on black as in MNIST.

    With ``invert`` off, black ink on white paper as the files have it.
    """
    arrays = find("femnist_digits_iid.npz", folder)
    return images(_ink_on_black(arrays) if invert else arrays, by_owner(arrays["client_train"]))


@register("dataset", "femnist_writers")
def femnist_writers(folder: str | None = None) -> Dataset:
    """FEMNIST, 62 classes, 12 real writers, strongly non-IID; ink bright on black as in MNIST."""
    arrays = find("femnist62_writers.npz", folder)
    return images(_ink_on_black(arrays), by_owner(arrays["writer_train"]))


@register("dataset", "pneumoniamnist")
def pneumoniamnist(folder: str | None = None) -> Dataset:
    """PneumoniaMNIST, 4,708 / 624, in the 10 overlapping clients of the PID-MADE authors where that file is there."""
    arrays = find("pneumoniamnist.npz", folder)
    try:
        rows = list(find("pneumoniamnist_clients.npz", folder, needs=("rows",))["rows"])
    except DataError:
        return images(arrays)
    return images(arrays, rows)


@register("dataset", "pathmnist")
def pathmnist(folder: str | None = None) -> Dataset:
    """PathMNIST sample, 8,000 / 2,000, 9 classes, 28x28 colour."""
    return images(find("pathmnist_10k.npz", folder))


@register("dataset", "bloodmnist")
def bloodmnist(folder: str | None = None) -> Dataset:
    """BloodMNIST, 8 classes, 28x28 colour: the official bloodmnist.npz, or bloodmnist_pbc.npz with its 40 clients.

    The latter is made from the same source images with a split of its own.
    """
    there = {name for name in ("bloodmnist.npz", PBC) for place in folders(folder) if (place / name).is_file()}
    if there == {PBC}:
        arrays = find(PBC, folder)
        return images(arrays, by_owner(arrays["client_train"]))
    arrays = find("bloodmnist.npz", folder, needs=())
    official = {"x_train": "train_images", "y_train": "train_labels", "x_test": "test_images", "y_test": "test_labels"}
    return images({key: arrays[name] if name in arrays else arrays[key] for key, name in official.items()})


@register("dataset", "its_stop_sign")
def its_stop_sign(folder: str | None = None) -> Dataset:
    """Stop signs against other traffic signs, the 12 clients of the PID-MADE authors, 64x64 colour."""
    arrays = find("its_stop_sign.npz", folder)
    return images(arrays, by_owner(arrays["client_train"]))


@register("dataset", "adult")
def adult(folder: str | None = None, encode: Literal["one_hot", "codes"] = "one_hot") -> Dataset:
    """UCI Adult (Census income): numbers standardised by the training split, categories one-hot.

    With ``encode="codes"`` a category is one number, its place in the alphabet, standardised too, and the survey
    weight and the name of the education, which its number repeats, are left out: 12 inputs.
    """
    if encode not in ("one_hot", "codes"):
        raise ConfigError(f"adult is encoded as 'one_hot' or 'codes'; got {encode!r}")
    with gzip.open(locate("adult.csv.gz", folder), "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    train = np.array([row["split"].startswith("train") for row in rows])
    label = np.array([row["income"].strip().startswith(">50K") for row in rows], dtype=np.int64)
    columns = []
    for name in rows[0].keys() - {"split", "income"} - (REPEATED if encode == "codes" else set()):
        columns.append((name, column([row[name].strip() for row in rows], train, encode == "codes")))
    x = torch.from_numpy(np.concatenate([c for _, c in sorted(columns)], axis=1).astype(np.float32))
    y = torch.from_numpy(label)
    t = torch.from_numpy(train)
    return Dataset(x[t], y[t], x[~t], y[~t], classes=2)
