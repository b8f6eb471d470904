"""How good the model is and how well the guard did; only the simulator may ask the second."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn
from torch.nn import functional as F

from ..core.stats import Scores
from ..core.types import RoundRecord
from .tasks import Task

Truth = Mapping[str, Collection[int]]
"""The rounds in which each attacker attacks, by client; all others are honest."""
Question = tuple[Tensor, Tensor]
"""Inputs of a model, and the right answers."""
TOGETHER = 4  # batches of samples, of as many clients, that are evaluated at a time


@torch.no_grad()
def evaluate(model: nn.Module, x: Tensor, y: Tensor, batch: int = 512) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of a model in evaluation mode."""
    model.eval()
    right, loss = 0, 0.0
    for a in range(0, len(y), batch):
        logits, labels = model(x[a : a + batch]), y[a : a + batch]
        right += int((logits.argmax(dim=1) == labels).sum())
        loss += float(F.cross_entropy(logits, labels, reduction="sum"))
    return right / len(y), loss / len(y)


def questions(task: Task, x: Tensor, y: Tensor, rng: torch.Generator, device: torch.device) -> list[Question]:
    """What a task asks of these samples, a batch of it at a time."""
    asked = (task.ask(x[a : a + task.batch], y[a : a + task.batch], rng) for a in range(0, len(x), task.batch))
    return [(inputs.to(device), right.to(device)) for inputs, right in asked]


@torch.no_grad()
def told(task: Task, model: nn.Module, asked: Iterable[Question]) -> dict[str, Tensor]:
    """What a task tells of each answer of a model in evaluation mode: its own metrics and the loss, (k,) by name."""
    model.eval()
    found: dict[str, list[Tensor]] = {}
    for inputs, right in asked:
        outputs = model(inputs)
        for name, values in {**task.scores(outputs, right), "loss": task.losses(outputs, right)}.items():
            found.setdefault(name, []).append(values)
    return {name: torch.cat(parts).cpu().double() for name, parts in found.items()}


def measure(task: Task, model: nn.Module, asked: Iterable[Question]) -> dict[str, float]:
    """What a task tells of a model in evaluation mode: the mean over all answers of its own metrics and of the loss."""
    return {name: float(values.mean()) for name, values in told(task, model, asked).items()}


def measure_each(task: Task, model: nn.Module, sets: Iterable[list[Question]]) -> list[dict[str, float]]:
    """The same for each of several data sets; where every sample has one answer, those of some are asked together.

    A small set costs as much as one of hundreds of samples.
    """
    found, waiting, samples = list[dict[str, float]](), list[list[Question]](), 0
    for asked in sets:
        waiting.append(asked)
        samples += _samples(asked)
        if samples >= TOGETHER * task.batch:
            found += _together(task, model, waiting)
            waiting, samples = [], 0
    return found + _together(task, model, waiting)


def _together(task: Task, model: nn.Module, sets: Sequence[list[Question]]) -> list[dict[str, float]]:
    if len(sets) < 2 or any(right.ndim > 1 for asked in sets for _, right in asked):
        return [measure(task, model, asked) for asked in sets]
    inputs, right = (torch.cat([question[k] for asked in sets for question in asked]) for k in (0, 1))
    found = told(task, model, zip(inputs.split(task.batch), right.split(task.batch), strict=True))
    parts = {name: values.split([_samples(asked) for asked in sets]) for name, values in found.items()}
    return [{name: float(values[i].mean()) for name, values in parts.items()} for i in range(len(sets))]


def _samples(asked: Sequence[Question]) -> int:
    return sum(len(right) for _, right in asked)


def rounds_to(values: Mapping[int, float], target: float, below: bool = False) -> int | None:
    """The first round whose value reaches the target; with ``below``, as a loss does, from above.

    >>> rounds_to({1: 0.5, 2: 0.9, 3: 0.8}, 0.9), rounds_to({1: 0.5}, 0.9), rounds_to({1: 0.5}, 0.9, below=True)
    (2, None, 1)
    """
    sign = -1 if below else 1
    return next((t for t, value in sorted(values.items()) if sign * value >= sign * target), None)


def f1_score(caught: int, wronged: int, missed: int) -> float:
    """Harmonic mean of precision and recall of the excluded clients; 1 where nobody was to be found nor excluded.

        F1 = 2 TP / (2 TP + FP + FN)

    >>> f1_score(2, 1, 1)
    0.6666666666666666
    """
    total = 2 * caught + wronged + missed
    return 2 * caught / total if total else 1.0


@dataclass(frozen=True)
class Detection:
    """What became of the attackers and of the honest clients over a run.

    An attacker that was left out before its attack began was wronged; ``rounds_to_detection`` counts from the first
    round of a client's attack, which is 1.
    """

    attackers: tuple[str, ...]
    caught: tuple[str, ...]
    wronged: tuple[str, ...]
    first_excluded: dict[str, int]
    rounds_to_detection: dict[str, int] = field(default_factory=dict)

    @property
    def recall(self) -> float:
        return _share(len(self.caught), len(self.attackers))

    @property
    def precision(self) -> float:
        return _share(len(self.caught), len(self.caught) + len(self.wronged))

    @property
    def f1(self) -> float:
        return f1_score(len(self.caught), len(self.wronged), len(self.attackers) - len(self.caught))


def detection(records: Sequence[RoundRecord], truth: Truth) -> Detection:
    """Whom the verdicts of a run left out, compared with the truth.

    A rejected reply is not a verdict, nor is the weight 0 of an aggregator that picks a few of many, nor a suspension
    that was lifted before the run ended.
    """
    first: dict[str, int] = {}
    caught: dict[str, int] = {}
    wronged: dict[str, int] = {}
    for client, t in _verdicts(records):
        first.setdefault(client, t)
        if _guilty(client, t, truth):
            caught.setdefault(client, t - min(truth[client]) + 1)
        else:
            wronged.setdefault(client, t)
    return Detection(tuple(truth), tuple(caught), tuple(wronged), first, caught)


def round_detection(record: RoundRecord, truth: Truth) -> dict[str, float]:
    """Precision, recall and F1 of who is left out in a round; ``let_in`` counts the attackers in the model.

    Who has begun to attack stays guilty when it pauses; missed is only who attacks in this very round.
    """
    out = {*_flagged_out(record), *record.excluded}
    caught = sum(_guilty(client, record.round, truth) for client in out)
    wronged = len(out) - caught
    inside = [c for c, weight in zip(record.client_ids, record.weights, strict=True) if weight > 0 and c not in out]
    missed = sum(record.round in truth.get(client, ()) for client in inside)
    return {
        "precision": _share(caught, caught + wronged),
        "recall": _share(caught, caught + missed),
        "f1": f1_score(caught, wronged, missed),
        "false_exclusions": float(wronged),
        "let_in": float(missed),
    }


def watch_quality(records: Sequence[RoundRecord], truth: Truth) -> dict[str, dict[str, float]]:
    """How well the score of each watch tells attackers from honest clients, whatever its threshold.

    ``auroc``, ``tpr_at_1`` and ``tpr_at_5`` (the true positive rate at a false positive rate of at most 1 or 5 %) pool
    the client-rounds of the rounds in which some client attacks and some honest one was judged as well;
    ``auroc_by_round`` is the mean of the AUROC within each of them, which does not suffer where scores grow over
    time. A client is left aside while its attack pauses. A watch without such a round is not listed.
    """
    rounds: dict[str, list[tuple[Scores, Scores]]] = {}
    for record in records:
        attacks = np.array([record.round in truth.get(c, ()) for c in record.client_ids], dtype=bool)
        pauses = np.array([_guilty(c, record.round, truth) for c in record.client_ids], dtype=bool) & ~attacks
        for watch in record.watches:
            judged = ~np.isnan(watch.scores) & ~pauses
            if len(np.unique(attacks[judged])) == 2:
                pair = (attacks[judged].astype(np.float64), np.nan_to_num(watch.scores[judged]))
                rounds.setdefault(watch.name, []).append(pair)
    return {name: _quality(pairs) for name, pairs in rounds.items()}


def _quality(rounds: Sequence[tuple[Scores, Scores]]) -> dict[str, float]:
    truth, scores = (np.concatenate(part) for part in zip(*rounds, strict=True))
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    return {
        "auroc": float(roc_auc_score(truth, scores)),
        "auroc_by_round": float(np.mean([roc_auc_score(*pair) for pair in rounds])),
        "tpr_at_1": float(true[false <= 0.01].max()),
        "tpr_at_5": float(true[false <= 0.05].max()),
    }


def _verdicts(records: Sequence[RoundRecord]) -> Iterator[tuple[str, int]]:
    """Every client that a verdict leaves out and the round; not again while it stays out, nor if it comes back."""
    ever = {c for record in records for c in record.suspended}
    inside = {c: i for i, record in enumerate(records) for c in ever.difference(record.excluded)}  # the last time
    gone: set[str] = set()
    for i, record in enumerate(records):
        back = {c for c in record.suspended if inside.get(c, -1) > i}
        new = [c for c in record.excluded if c not in gone]
        for client in dict.fromkeys([*_flagged_out(record), *new]):
            if client not in back:
                yield client, record.round
        gone = set(record.excluded) - back


def _flagged_out(record: RoundRecord) -> list[str]:
    return [record.client_ids[i] for i in np.flatnonzero(record.flagged & (record.weights == 0)).tolist()]


def _guilty(client: str, t: int, truth: Truth) -> bool:
    """Whether the client's attack has begun."""
    return client in truth and t >= min(truth[client])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
