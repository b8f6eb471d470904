"""The laws of a task: samples become questions, and a model's outputs become losses and metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import ConfigError
from ..sim.data.sources import Dataset, Tokens
from ..sim.tasks import UNASKED, Task
from .component import Component
from .law import CannotTell, laws, line, require

N, CLASSES, LENGTH = 12, 5, 9


def _rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def classes() -> Dataset:
    """Rows of numbers with a class each."""
    x, y = torch.rand(N, LENGTH, generator=_rng()), torch.arange(N) % CLASSES
    return Dataset(x, y, x, y, CLASSES)


def numbers() -> Dataset:
    """Rows of numbers with a number each."""
    x = torch.rand(N, LENGTH, generator=_rng())
    return Dataset(x, x.sum(dim=1), x, x.sum(dim=1), 1)


def texts() -> Dataset:
    """Token ids of which 0 is special and 1 the mask; the last two texts are an attacker's."""
    x, y = torch.randint(2, CLASSES, (N, LENGTH), generator=_rng()), torch.zeros(N)
    y[-2:] = 0.75
    x[:, 0] = 0
    return Dataset(x, y, x, y, CLASSES, tokens=Tokens(1, (0, 1)))


@dataclass(frozen=True)
class Examined:
    """A task, fitted to data that it takes."""

    component: Component
    task: Task
    data: Dataset

    def ask(self, seed: int = 1) -> tuple[Tensor, Tensor]:
        """What a model is asked of all samples, and the right answers."""
        return self.task.ask(self.data.x_train, self.data.y_train, _rng(seed))

    def outputs(self, answers: Tensor) -> Tensor:
        """What a model might say: one row for each answer that is wanted."""
        count = int((answers != UNASKED).sum()) if answers.ndim > 1 else len(answers)
        return torch.randn(count, self.data.classes, generator=_rng(2), requires_grad=True)


def subject(component: Component) -> Examined:
    """The task with the first of some data sets that it takes: classes, numbers, texts."""
    made, reasons = component.make(), []
    takes: tuple[Callable[[], Dataset], ...] = (classes, numbers, texts)
    for data in takes:
        try:
            return Examined(component, made.fit(data()), data())
        except ConfigError as error:
            reasons.append(line(error))
    raise CannotTell(f"it takes none of the data sets that are tried; {reasons[-1]}")


def fits_once(it: Examined) -> None:
    """A task that is fitted to its data stays as it is when it is fitted again."""
    again = it.task.fit(it.data)
    require(again == it.task, f"expected {it.task!r:.80}; got {again!r:.80}")


def one_question_each(it: Examined) -> None:
    """Every sample becomes one question with its answer, and a batch of one is asked like any other."""
    for n in (1, N):
        asked, answers = it.task.ask(it.data.x_train[:n], it.data.y_train[:n], _rng())
        require(len(asked) == len(answers) == n, f"expected {n} questions; got {len(asked)} and {len(answers)} answers")


def samples_untouched(it: Examined) -> None:
    """Samples and labels are only read."""
    x, y = it.data.x_train.clone(), it.data.y_train.clone()
    it.ask()
    alike = torch.equal(x, it.data.x_train) and torch.equal(y, it.data.y_train)
    require(alike, "expected samples and labels as they were; got others")


def generator_decides(it: Examined) -> None:
    """The generator that is given decides what is asked, and no other."""
    found = []
    for seed in (0, 5):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.append(it.ask())
    same = all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    require(same, "expected the same with another seed of torch; got something else")


def one_loss_each(it: Examined) -> None:
    """Every answer has one finite loss, at least 0, and as many numbers of each metric, none of them named loss."""
    _, answers = it.ask()
    outputs = it.outputs(answers)
    losses, scores = it.task.losses(outputs, answers), it.task.scores(outputs, answers)
    require(losses.shape == (len(outputs),), f"expected {len(outputs)} losses; got {tuple(losses.shape)}")
    require(losses.isfinite().all() and losses.min() >= 0, f"expected finite losses from 0 on; got {losses!s:.60}")
    require("loss" not in scores, "expected metrics besides the loss; got one of that name")
    wrong = {name: tuple(values.shape) for name, values in scores.items() if values.shape != losses.shape}
    require(not wrong, f"expected {len(losses)} numbers of each metric; got {wrong}")


def descent(it: Examined) -> None:
    """A small step against the gradient of the mean loss lowers it."""
    _, answers = it.ask()
    outputs = it.outputs(answers)
    before = it.task.losses(outputs, answers).mean()
    (gradient,) = torch.autograd.grad(before, outputs)
    require(gradient.isfinite().all(), "expected a finite gradient; got another")
    after = it.task.losses(outputs.detach() - 0.01 * gradient, answers).mean()
    require(after < before, f"expected a loss below {before.item():.6g}; got {after.item():.6g}")


LAWS = laws(fits_once, one_question_each, samples_untouched, generator_decides, one_loss_each, descent)
