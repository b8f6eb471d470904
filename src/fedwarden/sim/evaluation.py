"""How good a model is: on the test set, for attackers, clients and jurors; and first, whether it fits the data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..attacks import Examples
from ..core.errors import ConfigError
from ..core.generators import torch_rng
from ..core.types import Reported
from ..guard.jury import EXAMPLES
from ..signals.harm import without_absent
from .data.sources import Dataset
from .data.world import Rows, World, source
from .scenario import Scenario
from .tasks import Classification, Regression, Task

FEW = 2  # samples that a model is tried on

Question = tuple[Tensor, Tensor]
"""Inputs of a model, and the right answers."""
Lent = Callable[[str], nn.Module]


def questions(task: Task, x: Tensor, y: Tensor, rng: torch.Generator, device: torch.device) -> list[Question]:
    """What a task asks of these samples, as many of them at a time as it says."""
    asked = (task.ask(x[a : a + task.batch], y[a : a + task.batch], rng) for a in range(0, len(x), task.batch))
    return [(inputs.to(device), right.to(device)) for inputs, right in asked]


@torch.no_grad()
def measure(task: Task, model: nn.Module, asked: Iterable[Question]) -> dict[str, float]:
    """What a task tells of a model in evaluation mode: the mean over all answers of its own metrics and of the loss."""
    model.eval()
    found: dict[str, list[Tensor]] = {}
    for inputs, right in asked:
        outputs = model(inputs)
        for name, values in {**task.scores(outputs, right), "loss": task.losses(outputs, right)}.items():
            found.setdefault(name, []).append(values)
    return {name: float(torch.cat(parts).cpu().double().mean()) for name, parts in found.items()}


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of a model besides its accuracy on the test set.

    ``goals`` are the test samples as each attack with a target presents them, with the labels it wants; ``kinds`` are
    the test samples as the inputs of honest clients are that differ in them; ``recalls`` are classes.
    """

    goals: Sequence[Examples] = ()
    kinds: Sequence[Examples] = ()
    recalls: Sequence[int] = ()


class Evaluation:
    """Evaluates the models of a run on the samples of its world."""

    def __init__(self, task: Task, world: World, asked: Asked, seed: int, device: torch.device) -> None:
        self.task, self.world, self.goals, self.seed, self.device = task, world, asked.goals, seed, device
        self.kinds = asked.kinds
        self.rare = [_of_class(world.data, label) for label in dict.fromkeys(asked.recalls)]

    def __call__(self, model: nn.Module, held: Mapping[str, Rows], lent: Lent) -> tuple[dict[str, float], Reported]:
        """What the task tells on the clean test set, as accuracy and loss; and in a task that has an accuracy, what
        attackers reach of their goals, and the clients' own accuracy on the rows that they hold back, which follows
        client by client, each of the model that it is ``lent``.

        ``attack_success`` is the share of the targeted test samples that are classified as the attackers want,
        ``own_kind_accuracy`` the mean accuracy over the kinds of inputs of clients that differ, and ``class_recall``
        the mean recall of the classes that are asked for.
        """
        metrics = measure(self.task, model, self._test)
        if "accuracy" not in metrics:
            return metrics, {}
        if self.goals:
            reached = [measure(self.task, model, asked)["accuracy"] for asked in self._asked(self.goals)]
            metrics["attack_success"] = float(np.average(reached, weights=[len(goal.y) for goal in self.goals]))
        for name, sets in {"own_kind_accuracy": self.kinds, "class_recall": self.rare}.items():
            if sets:
                found = [measure(self.task, model, asked)["accuracy"] for asked in self._asked(sets)]
                metrics[name] = float(np.mean(found))
        if not held:
            return metrics, {}
        x, y = self.world.x, self.world.y
        asked = {client: self._ask(x[rows], y[rows], client) for client, rows in held.items()}
        own = {client: measure(self.task, lent(client), each)["accuracy"] for client, each in asked.items()}
        return {**metrics, "clients_accuracy": float(np.mean([*own.values()]))}, {"evaluate/accuracy": own}

    @cached_property
    def _test(self) -> list[Question]:
        return self._ask(self.world.data.x_test, self.world.data.y_test)

    def _asked(self, sets: Sequence[Examples]) -> Iterable[list[Question]]:
        return (self._ask(samples.x, torch.from_numpy(samples.y)) for samples in sets)

    def _ask(self, x: Tensor, y: Tensor, client: str = "") -> list[Question]:
        """The task's questions on samples, the same in every round."""
        return questions(self.task, x, y, torch_rng(self.seed, "evaluation", 0, client), self.device)


def some_of(rows: Rows, most: int) -> Rows:
    """So many rows at most, evenly over all of them.

    >>> some_of(np.arange(10), 4).tolist(), some_of(np.arange(3), 4).tolist()
    ([0, 2, 5, 7], [0, 1, 2])
    """
    taken = min(most, len(rows))
    return rows[np.arange(taken) * len(rows) // max(taken, 1)]


class Jurors:
    """The questions of the named jurors: some of their own training rows, the same in every round.

    A classifier is asked among the classes of a juror's rows alone, so that learning another class is no loss to it.
    """

    def __init__(self, names: Collection[str], task: Task, world: World, seed: int, device: torch.device) -> None:
        self.task = task
        self.asked: Mapping[str, list[Question]] = {}
        for name in sorted(names):
            rows, rng = some_of(world.rows[name], EXAMPLES), torch_rng(seed, "juror", 0, name)
            self.asked |= {name: questions(task, world.x[rows], world.y[rows], rng, device)}

    def __contains__(self, client: str) -> bool:
        return client in self.asked

    @torch.no_grad()
    def losses(self, model: nn.Module, client: str) -> Tensor:
        """The loss of each of a juror's examples."""
        model.eval()
        return torch.cat([without_absent(self.task.losses, model(x), right).cpu() for x, right in self.asked[client]])


def _of_class(data: Dataset, label: int) -> Examples:
    """The test samples of one class."""
    mine = data.y_test == label
    if not mine.any():
        raise ConfigError(f"recalls: expected classes that the test set has; it has no sample of class {label}")
    return Examples(data.x_test[mine], data.y_test[mine].numpy())


def fit(task: Task, data: Dataset, where: str) -> Task:
    """The task on this data set; an error begins with ``where`` the data come from."""
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
