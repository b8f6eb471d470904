"""Eight hospitals with data of their own, one of them with its labels the wrong way round."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = ("north", "south", "east", "west", "hill", "lake", "port", "wood")
Array = NDArray[Any]


def hospitals(turned: str = "west") -> tuple[Array, Array, Array]:
    """Features, labels and the hospital of 40 rows each."""
    x = np.random.default_rng(0).normal(size=(320, 4)).astype(np.float32)
    y, owner = (x[:, 0] + x[:, 1] > 0).astype(np.int64), np.repeat(NAMES, 40)
    y[owner == turned] = 1 - y[owner == turned]
    return x, y, owner


def by_name() -> dict[str, tuple[Array, Array]]:
    """The same by hospital."""
    x, y, owner = hospitals()
    return {name: (x[owner == name], y[owner == name]) for name in NAMES}
