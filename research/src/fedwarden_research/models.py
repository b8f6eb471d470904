"""Models of the papers and of settings that others have published."""

from __future__ import annotations

from torch import nn

from fedwarden.core.registry import register
from fedwarden.sim.models import Shape, image, mlp, pid_made_cnn


@register("model", "pid_made_cnn_large")
def pid_made_cnn_large(shape: Shape, classes: int) -> nn.Module:
    """The larger CNN of PID-MADE (BloodMNIST): channels 16 and 32, hidden layers 128 and 64."""
    return pid_made_cnn(shape, classes, channels=(16, 32), hidden=(128, 64))


@register("model", "audit_cnn")
def audit_cnn(shape: Shape, classes: int) -> nn.Module:
    """The CNN of the audit paper for MNIST and Fashion-MNIST: 1.2 M parameters at 28x28."""
    c, h, w = image(shape, 6)
    flat = 64 * ((h - 4) // 2) * ((w - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(c, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(flat, 128), nn.ReLU(), nn.Linear(128, classes),
    )  # fmt: skip


@register("model", "lenet5")
def lenet5(shape: Shape, classes: int) -> nn.Module:
    """LeNet-5 with ReLU and max pooling, as in FLPoison: 61,706 parameters at 28x28, which padding makes 32x32."""
    c, h, w = image(shape, 12)
    flat = 16 * ((h // 2 - 4) // 2) * ((w // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(c, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(flat, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


@register("model", "lfighter_cnn")
def lfighter_cnn(shape: Shape, classes: int, dropout: float = 0.5) -> nn.Module:
    """The CNN of LFighter for MNIST: 21,840 parameters at 28x28.

    Differs from theirs: dropout after the second convolution takes single values, behind the pooling, not channels.
    """
    c, h, w = image(shape, 16)
    flat = 20 * (((h - 4) // 2 - 4) // 2) * (((w - 4) // 2 - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(c, 10, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(10, 20, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Dropout(dropout), nn.Linear(flat, 50), nn.ReLU(), nn.Dropout(dropout), nn.Linear(50, classes),
    )  # fmt: skip


@register("model", "census_mlp")
def census_mlp(shape: Shape, classes: int) -> nn.Module:
    """The MLP of the audit paper for Census: 64, 32, 16, 8 hidden units."""
    return mlp(shape, classes, hidden=(64, 32, 16, 8))
