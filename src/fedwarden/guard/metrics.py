"""Metrics that clients claim: numbers, or not, and none so far from the others' that it owns an average."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..core.notes import Note
from ..core.stats import Scores
from ..core.types import Reported
from ..core.words import short

ACCURACY = re.compile(r"(?:^|[^a-z])acc(?:uracy)?(?:[^a-z]|$)")
WORST = "worst_accuracy"
FARTHEST = 10.0  # times as large as the next one among the others' a metric may be


def accuracy_of(metrics: Mapping[str, float], name: str = "") -> float | None:
    """The accuracy among a round's metrics: that of this name, else the first that is called one; None without.

    What the server measured comes before what clients claim, and a share of a hundred is none.

    >>> accuracy_of({"evaluate/acc": 0.5, "eval_acc": 0.7, "train/accuracy": 0.9, "account": 1.0})
    0.7
    >>> accuracy_of({"evaluate/top1": 0.5, "eval_acc": 0.7}, "top1"), accuracy_of({"acc": 70.0})
    (0.5, None)
    """
    ours = [key for key in metrics if "/" not in key]
    claimed = [key for key in metrics if key.startswith("evaluate/")]
    keys = [name, f"evaluate/{name}"] if name else [key for key in ours + claimed if ACCURACY.search(key.lower())]
    return next((metrics[key] for key in keys if 0 <= metrics.get(key, math.nan) <= 1), None)


def worst_accuracy(reported: Reported, left_out: Collection[str], name: str = "") -> dict[str, float]:
    """The lowest accuracy that a client reports, of those that are not left out, as a metric; none where none does.

    >>> told = {"evaluate/loss": {"a": 0.1}, "evaluate/acc": {"a": 0.9, "b": 0.7, "c": 0.2, "d": 70.0}}
    >>> worst_accuracy(told, ["c"])
    {'worst_accuracy': 0.7}
    """
    plain = {key.partition("/")[2]: values for key, values in reported.items()}
    found = next((plain[key] for key in plain if (key == name if name else ACCURACY.search(key.lower()))), {})
    values = [value for client, value in found.items() if client not in left_out and 0 <= value <= 1]
    return {WORST: min(values)} if values else {}


def largest_metric(values: NDArray[np.float64]) -> Scores:
    """The largest size of a metric that counts, by column of (n, k): no client far beyond the others owns an average.

        |x|_(1) <= ... <= |x|_(n);   L_i = max(1, 10 |x|_(i));   the first L_i < |x|_(i+1) with i >= n / 2, else inf

    A metric between -1 and 1, such as an accuracy, is never cut, nor is one at most ten times as large as another
    client's. One client of n that lies adds at most its own weight times max(1, 10 M), M the others' largest.

    >>> largest_metric(np.array([[0.5], [0.7], [0.6], [1e300]])).tolist()
    [7.0]
    """
    n = len(values)
    sizes = np.sort(np.abs(values), axis=0)[(n - 1) // 2 :]
    if n < 2:
        return np.full(values.shape[1], np.inf)
    with np.errstate(over="ignore"):
        limits = np.maximum(1.0, FARTHEST * sizes[:-1])
    beyond = sizes[1:] > limits
    first = np.take_along_axis(limits, beyond.argmax(axis=0)[None], axis=0)[0]
    return np.asarray(np.where(beyond.any(axis=0), first, np.inf), dtype=np.float64)


def bounded(name: str, clients: Sequence[str], values: NDArray[np.float64]) -> tuple[NDArray[np.float64], list[Note]]:
    """The values (n, k) of a metric without what lies absurdly far beyond the others', and a note of each client's cut.

    >>> print(*bounded("acc", ["a", "b", "c"], np.array([[0.5], [0.7], [1e9]]))[1])
    client c: its metric 'acc' is 1e+09, far from the others', and counts as 7
    """
    largest = largest_metric(values)
    cut, notes = np.clip(values, -largest, largest), []
    for i in np.flatnonzero((cut != values).any(axis=1)).tolist():
        worst = int(np.argmax(cut[i] != values[i]))
        value, counted = float(values[i, worst]), float(cut[i, worst])
        notes.append(Note.of("metric_bounded", clients[i], metric=short(name), value=value, counted=counted))
    return cut, notes
