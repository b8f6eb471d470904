"""The strategy that is guarded, and what it wraps itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import Strategy

from ..core.notes import Note
from ..core.words import reason

METRICS = "train_metrics_aggr_fn"


def chain(strategy: Strategy) -> list[Strategy]:
    """A strategy and those that it wraps, from the outside in."""
    inner = getattr(strategy, "strategy", None)
    return [strategy, *(chain(inner) if isinstance(inner, Strategy) else [])]


def innermost(strategy: Strategy) -> Strategy:
    """The strategy inside all wrappers, which reads the weights."""
    return chain(strategy)[-1]


@contextmanager
def metrics_apart(strategy: Strategy, notes: list[Note]) -> Iterator[None]:
    """Inside, a function that fails to average the metrics costs the metrics, with a note, and not the model."""
    average = getattr(strategy, METRICS, None)

    def careful(records: list[RecordDict], key: str) -> MetricRecord:
        try:
            return cast(MetricRecord, average(records, key))  # type: ignore[misc]
        except Exception as error:
            notes.append(Note.of("metrics_failed", error=reason(error)))
            return MetricRecord()

    if average is None:
        yield
        return
    setattr(strategy, METRICS, careful)
    try:
        yield
    finally:
        setattr(strategy, METRICS, average)
