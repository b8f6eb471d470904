"""The strategy that is guarded, and what it wraps itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedMedian,
    FedTrimmedAvg,
    FedXgbBagging,
    FedXgbCyclic,
    Krum,
    QFedAvg,
    Strategy,
)

from ..core.notes import Note
from ..core.words import reason

METRICS = "train_metrics_aggr_fn"
NOISY = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
"""Strategies of Flower that add noise to the model, so that it does not show single updates."""
TREES = (FedXgbBagging, FedXgbCyclic)  # whose replies are the bytes of trees, and no weights


HOLDING = (
    Bulyan,
    FedMedian,
    FedTrimmedAvg,
    Krum,
    QFedAvg,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
)
"""Strategies of Flower that hold the arrays of all replies at once; the others add up one reply after another."""


def chain(strategy: Strategy) -> list[Strategy]:
    """A strategy and those that it wraps, from the outside in."""
    inner = getattr(strategy, "strategy", None)
    return [strategy, *(chain(inner) if isinstance(inner, Strategy) else [])]


def innermost(strategy: Strategy) -> Strategy:
    """The strategy inside all wrappers, which reads the weights."""
    return chain(strategy)[-1]


@dataclass(frozen=True)
class Declared:
    """What a strategy of Flower may declare, by its name there, and what holds of one that does not."""

    weighted_by_key: str = "num-examples"
    train_loss_key: str | None = None
    min_train_nodes: int = 0
    min_evaluate_nodes: int = 0
    min_available_nodes: int = 0
    train_metrics_aggr_fn: Callable[[list[RecordDict], str], MetricRecord] | None = None

    @classmethod
    def by(cls, strategy: Strategy) -> Declared:
        """What the strategy inside all wrappers declares."""
        core = innermost(strategy)
        return cls(**{part.name: getattr(core, part.name) for part in fields(cls) if hasattr(core, part.name)})


@contextmanager
def metrics_apart(strategy: Strategy, notes: list[Note]) -> Iterator[None]:
    """Inside, a function that fails to average the metrics costs the metrics, with a note, and not the model."""
    average = Declared.by(strategy).train_metrics_aggr_fn
    if average is None:
        yield
        return

    def careful(records: list[RecordDict], key: str) -> MetricRecord:
        try:
            return average(records, key)
        except Exception as error:
            notes.append(Note.of("metrics_failed", error=reason(error)))
            return MetricRecord()

    setattr(strategy, METRICS, careful)
    try:
        yield
    finally:
        setattr(strategy, METRICS, average)
