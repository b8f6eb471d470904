"""Whether task, model and data fit together: tried on a few samples before the first round, and told in one line."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.errors import ConfigError
from .data.sources import Dataset
from .data.world import World, source
from .scenario import Scenario
from .tasks import Classification, Regression, Task

FEW = 2


def fit(task: Task, data: Dataset, where: str) -> Task:
    """The task on this data set; what does not fit is told with where the data come from."""
    try:
        return task.fit(data)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from error


def try_model(model: nn.Module, scenario: Scenario, task: Task, world: World) -> None:
    """Let the model answer a few samples, and the smallest batch of any client where it normalises batches."""
    if not isinstance(task, Classification | Regression):
        return
    data, name = world.data, f"model {scenario.model.name!r}"
    if not any(p.requires_grad for p in model.parameters()):
        raise ConfigError(f"{name} has no parameters to train; expected at least one")
    x = world.x[:FEW].to(next(model.parameters()).device)
    was = model.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            outputs = model.eval()(x)
    except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
        words = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise ConfigError(
            f"{name} cannot take the samples of {source(scenario)}, which have the shape {data.shape} ({words})"
        ) from error
    finally:
        model.train(was)
    wanted, got = (len(x), data.classes), getattr(outputs, "shape", type(outputs).__name__)
    if got != wanted:
        shape = tuple(got) if isinstance(got, torch.Size) else got
        raise ConfigError(
            f"{name} gives {shape} for {len(x)} samples of {source(scenario)}; expected {wanted}: "
            f"{'one number' if data.classes == 1 else f'a number for each of {data.classes} classes'} a sample"
        )
    if any(isinstance(module, _BatchNorm) for module in model.modules()):
        _try_smallest(model, scenario, world)


def _try_smallest(model: nn.Module, scenario: Scenario, world: World) -> None:
    """Refuse a last batch of one sample where BatchNorm cannot normalise it."""
    size, steps = scenario.train.batch_size, scenario.train.steps
    if scenario.train.smallest_batch > 1:
        return
    sizes = {client: len(rows) for client, rows in world.rows.items()}
    alone = [c for c, n in sizes.items() if size == 1 or (n % size == 1 and (steps is None or steps > n // size))]
    if not alone:
        return
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            deepcopy(model).train()(world.x[:1].to(next(model.parameters()).device))
    except ValueError as error:
        others = [*range(size - 1, 1, -1), *range(size + 1, size + 32)]
        other = next((b for b in others if all(n % b != 1 for n in sizes.values())), None)
        hint = "train.smallest_batch = 2 leaves it out"
        if other is not None:
            hint += f", train.batch_size = {other} leaves none alone"
        raise ConfigError(
            f"{source(scenario)}: client {alone[0]} has {sizes[alone[0]]} samples, and with train.batch_size = {size} "
            f"a batch of one sample, which BatchNorm cannot normalise; expected at least two: {hint}"
        ) from error
