"""How well the guard did; only the simulator may ask."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..core.notes import DOUBTS
from ..core.separation import auroc, tpr_at
from ..core.stats import Scores
from ..core.types import RoundRecord

Truth = Mapping[str, Collection[int]]
"""The rounds in which each attacker attacks, by client; all others are honest."""


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
    """The clients that the verdicts of a run excluded, compared with the truth.

    A rejected reply is not a verdict, nor is the weight 0 of an aggregator that picks a few of many, nor a round in
    which a client in doubt is skipped, nor a suspension that was lifted before the run ended.
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
            judged, scores = ~np.isnan(watch.scores) & ~pauses, np.nan_to_num(watch.scores)
            high, null = scores[judged & attacks], scores[judged & ~attacks]
            if len(high) and len(null):
                rounds.setdefault(watch.name, []).append((high, null))
    return {name: _quality(pairs) for name, pairs in rounds.items()}


def _quality(rounds: Sequence[tuple[Scores, Scores]]) -> dict[str, float]:
    high, null = (np.concatenate(part) for part in zip(*rounds, strict=True))
    return {
        "auroc": auroc(high, null),
        "auroc_by_round": float(np.mean([auroc(*pair) for pair in rounds])),
        "tpr_at_1": tpr_at(high, null, 0.01),
        "tpr_at_5": tpr_at(high, null, 0.05),
    }


def _verdicts(records: Sequence[RoundRecord]) -> Iterator[tuple[str, int]]:
    """Every client that a verdict leaves out and the round; not again while it stays out, nor if it comes back."""
    ever = {c for record in records for c in record.suspended}
    inside = {c: i for i, record in enumerate(records) for c in ever.difference(record.excluded)}  # the last time
    gone: set[str] = set()
    for i, record in enumerate(records):
        back = {c for c in record.suspended if inside.get(c, -1) > i}
        new = [c for c in record.excluded if c not in gone]
        doubted = _in_doubt(record)
        for client in dict.fromkeys([*_flagged_out(record), *new]):
            if client not in back and (client not in doubted or client in record.excluded):
                yield client, record.round
        gone = set(record.excluded) - back


def _flagged_out(record: RoundRecord) -> list[str]:
    return [record.client_ids[i] for i in np.flatnonzero(record.flagged & (record.weights == 0)).tolist()]


def _in_doubt(record: RoundRecord) -> set[str]:
    return {client for note in record.notes if note.kind in DOUBTS for client in note.clients}


def first_verdicts(records: Sequence[RoundRecord]) -> dict[str, int]:
    """The first round in which each client was excluded, suspended, skipped or on trial."""
    first: dict[str, int] = {}
    for record in records:
        for client in [*record.excluded, *_flagged_out(record), *sorted(_in_doubt(record))]:
            first.setdefault(client, record.round)
    return first


def _guilty(client: str, t: int, truth: Truth) -> bool:
    """Whether the client's attack has begun."""
    return client in truth and t >= min(truth[client])


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 1.0
