"""Federated averaging as one would write it in an afternoon: one client after another, one thread, torch alone.

The yardstick of ``simulate.py``. It imports nothing of fedwarden, so that a run of it in a fresh process costs what
such a script costs. Run by itself it takes a .npz file with x, y, x_test, y_test and the rows of each client.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


class Mlp(nn.Module):
    """784-128-10."""

    def __init__(self, inputs: int = 784, hidden: int = 128) -> None:
        super().__init__()
        self.fc1 = nn.Linear(inputs, hidden)
        self.fc2 = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


class Cnn(nn.Module):
    """The CNN of PID-MADE for 28x28 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(256, 64)
        self.fc2 = nn.Linear(64, 32)
        self.fc3 = nn.Linear(32, 10)
        self.drop1, self.drop2 = nn.Dropout(0.3), nn.Dropout(0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        x = self.drop1(F.relu(self.fc1(x)))
        return self.fc3(self.drop2(F.relu(self.fc2(x))))


MODELS = {"mlp": Mlp, "cnn": Cnn}
OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def train_client(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    rows: torch.Tensor,
    optimizer: str,
    lr: float,
    epochs: int,
    batch_size: int,
) -> None:
    """Local training on some rows of the data."""
    model.train()
    steps = OPTIMIZERS[optimizer](model.parameters(), lr=lr)
    for _ in range(epochs):
        order = rows[torch.randperm(len(rows))]
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            steps.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            steps.step()


def play_round(
    model: nn.Module,
    x: torch.Tensor,
    y: torch.Tensor,
    clients: list[torch.Tensor],
    optimizer: str,
    lr: float,
    epochs: int,
    batch_size: int,
) -> None:
    """One round of federated averaging; the model becomes the new global one."""
    start = copy.deepcopy(model.state_dict())
    total = {name: torch.zeros_like(value) for name, value in start.items()}
    examples = sum(len(rows) for rows in clients)
    for rows in clients:
        model.load_state_dict(start)
        train_client(model, x, y, rows, optimizer, lr, epochs, batch_size)
        for name, value in model.state_dict().items():
            total[name] += len(rows) / examples * value
    model.load_state_dict(total)


@torch.no_grad()
def evaluate(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    """Accuracy and mean cross-entropy."""
    model.eval()
    right, loss = 0, 0.0
    for start in range(0, len(y), 512):
        logits, labels = model(x[start : start + 512]), y[start : start + 512]
        right += int((logits.argmax(dim=1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return right / len(y), loss / len(y)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("data", help="a .npz file: x, y, x_test, y_test, rows, sizes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, default="cnn")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adam")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=10)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(args.data, allow_pickle=False) as file:
        data = {key: torch.from_numpy(file[key]) for key in file.files}
    x, y = data["x"], data["y"]
    clients = list(data["rows"].split(data["sizes"].tolist()))
    model = Cnn() if args.model == "cnn" else Mlp(x[0].numel(), args.hidden)
    for t in range(1, args.rounds + 1):
        play_round(model, x, y, clients, args.optimizer, args.lr, args.epochs, args.batch_size)
        accuracy, loss = evaluate(model, data["x_test"], data["y_test"])
        print(f"round {t}: accuracy {accuracy:.3f}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
