"""Numbers of single clients in a round: what they tell of themselves, and what a server sees of their replies.

A name says whose word it is: ``train/`` and ``evaluate/`` are the client's own, ``reply/`` is measured by the server,
``update/`` by the guard, ``map/`` is where a client's update lies beside the others. What clients tell is shown and
never believed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from .types import Reported
from .words import short

MOST = 32  # names that one round keeps
SECONDS, BYTES, COSINE = "reply/seconds", "reply/bytes", "update/cosine"
STALENESS = "reply/staleness"  # rounds since the model was made that an update began from
TRIGGER = (
    "update/trigger"  # by how many nats it strengthens the triggers that were found, see fedwarden.guard.backdoors
)
ACROSS, UP = "map/x", "map/y"
WORSE = "train/worse"  # what jurors report, see fedwarden.guard.jury: kept however many names there are
MEASURED = ("reply/", "update/", "map/")  # not the word of a client


def told(prefix: str, values: Iterable[tuple[str, Mapping[str, float]]]) -> Reported:
    """What clients told, by name and client; the first names that most of them use, and finite numbers only.

    >>> told("train/", [("a", {"loss": 2.0}), ("b", {"loss": 1.0, "odd": 3.0}), ("c", {"loss": math.nan})])
    {'train/loss': {'a': 2.0, 'b': 1.0}, 'train/odd': {'b': 3.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for client, metrics in values:
        for name, value in metrics.items():
            if math.isfinite(value):
                found.setdefault(prefix + short(name), {}).setdefault(client, float(value))
    names = set(sorted(found, key=lambda name: (name != WORSE, -len(found[name])))[:MOST])
    return {name: values for name, values in found.items() if name in names}


def joined(*parts: Reported) -> Reported:
    """Several of them as one; of a number that is there twice the later one.

    >>> joined({"x": {"a": 1.0}}, {"x": {"b": 2.0}, "y": {"a": 3.0}})
    {'x': {'a': 1.0, 'b': 2.0}, 'y': {'a': 3.0}}
    """
    found: dict[str, dict[str, float]] = {}
    for part in parts:
        for name, values in part.items():
            found.setdefault(name, {}).update(values)
    return found
