"""The model, its data and its training: plain PyTorch, offline."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_partition(number: int, of: int, changed: bool) -> tuple[Tensor, Tensor]:
    """The samples of one node; after a change those of even digits alone."""
    digits = load_digits()
    rows = np.random.default_rng(0).permutation(len(digits.target))[number::of]
    if changed:
        rows = rows[digits.target[rows] % 2 == 0]
    return torch.tensor(digits.data[rows] / 16.0, dtype=torch.float32), torch.tensor(digits.target[rows])


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(epochs):
        for index in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            F.cross_entropy(model(x[index]), y[index]).backward()
            optimizer.step()
