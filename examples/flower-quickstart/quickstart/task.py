"""The model, its data and its training: plain PyTorch, offline."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

TEST = 360  # samples that no node holds


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def load_data() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x = torch.tensor(digits.data[order] / 16.0, dtype=torch.float32)
    return x, torch.tensor(digits.target[order])


def load_partition(number: int, of: int) -> tuple[Tensor, Tensor]:
    """The samples of one node."""
    x, y = load_data()
    return x[TEST:][number::of], y[TEST:][number::of]


def load_test() -> tuple[Tensor, Tensor]:
    x, y = load_data()
    return x[:TEST], y[:TEST]


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int, lr: float) -> float:
    """Local training; returns the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(epochs):
        for index in torch.randperm(len(y)).split(32):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[index]), y[index])
            loss.backward()
            optimizer.step()
    return loss.item()


def test(model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy."""
    model.eval()
    with torch.inference_mode():
        logits = model(x)
        return float(F.cross_entropy(logits, y)), float((logits.argmax(1) == y).float().mean())
