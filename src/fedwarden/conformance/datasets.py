"""The laws of a data set: tensors to train and test on, and the clients that it comes with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..core.errors import FedwardenError
from ..sim.data.sources import Dataset
from .component import Component
from .law import CannotTell, laws, line, require


@dataclass(frozen=True)
class Examined:
    """A data set, loaded."""

    component: Component
    data: Dataset


def subject(component: Component) -> Examined:
    """The data set; where its files are not there, no law can tell anything."""
    try:
        return Examined(component, component.make())
    except FedwardenError as error:
        raise CannotTell(line(error)) from error


def one_label_each(it: Examined) -> None:
    """Every sample has one label, in training and test: a class as int64, or a finite number as float32."""
    d = it.data
    for part, x, y in (("training", d.x_train, d.y_train), ("test", d.x_test, d.y_test)):
        require(len(x) and len(x) == len(y), f"{part}: expected samples, each with a label; got {len(x)} and {len(y)}")
        if y.is_floating_point():
            right = y.dtype == torch.float32 and y.isfinite().all()
            require(right, f"{part}: expected finite labels of float32; got {y.dtype}, or others")
            continue
        require(y.dtype == torch.int64, f"{part}: expected labels of int64 or float32; got {y.dtype}")
        low, high = int(y.min()), int(y.max())
        require(low >= 0 and high < d.classes, f"{part}: expected 0 to {d.classes - 1}; got {low} to {high}")


def finite_inputs(it: Examined) -> None:
    """Inputs are finite float32, or token ids from 0 on; training and test have the same shape and type."""
    a, b = it.data.x_train, it.data.x_test
    require(a.dtype in (torch.float32, torch.int64), f"expected inputs of float32 or int64; got {a.dtype}")
    require(a.shape[1:] == b.shape[1:], f"expected test inputs of shape {tuple(a.shape[1:])}; got {tuple(b.shape[1:])}")
    require(a.dtype == b.dtype, f"expected test inputs of {a.dtype}; got {b.dtype}")
    for x in (a, b):
        right = x.isfinite().all() if x.dtype == torch.float32 else (x >= 0).all()
        require(right, "expected finite inputs, or tokens from 0 on; got others")


def images_in_range(it: Examined) -> None:
    """Images have their channels first and values in [0, 1]."""
    if len(it.data.shape) != 3:
        raise CannotTell("its inputs are not images")
    channels, x = it.data.shape[0], it.data.x_train
    require(channels in (1, 3), f"expected 1 or 3 channels first; got the shape {it.data.shape}")
    require(x.min() >= 0 and x.max() <= 1, f"expected values in [0, 1]; got {x.min():.3g} to {x.max():.3g}")


def clients_hold_rows(it: Examined) -> None:
    """A client that the data set comes with holds rows of the training data, none of them twice."""
    if it.data.clients is None:
        raise CannotTell("it comes without clients")
    n = len(it.data.y_train)
    for client, rows in enumerate(it.data.clients):
        right = len(rows) and rows.min() >= 0 and rows.max() < n and len(np.unique(rows)) == len(rows)
        require(right, f"client {client}: expected rows from 0 to {n - 1}, each once; got {len(rows)} others")


def repeatable(it: Examined) -> None:
    """It is the same whenever it is loaded."""
    again: Dataset = it.component.make()
    for part in ("x_train", "y_train", "x_test", "y_test"):
        alike = torch.equal(getattr(again, part), getattr(it.data, part))
        require(alike, f"expected the same {part} again; got another")


LAWS = laws(one_label_each, finite_inputs, images_in_range, clients_hold_rows, repeatable)
