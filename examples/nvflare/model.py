"""What every site trains: a small network on the digits of scikit-learn."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn


class Net(nn.Sequential):
    """64 inputs, 32 hidden units, 10 classes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_site(site: int, sites: int) -> tuple[Tensor, Tensor]:
    """The digits of one site: every so many-th of all of them, in a fixed random order."""
    x, y = load_digits(return_X_y=True)
    mine = np.random.default_rng(0).permutation(len(x))[site::sites]
    return torch.tensor(x[mine] / 16, dtype=torch.float32), torch.tensor(y[mine])
