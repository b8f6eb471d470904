"""Report only, leave out for a round, quarantine, or weigh down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..core.protocols import FOR_GOOD, Findings
from ..core.registry import register
from ..core.stats import Scores, Weights, among


def huber_weight(severity: Scores, limit: float) -> Weights:
    """Full weight up to a limit, then inversely proportional to how far out a client stands.

        w = min(1, limit / z)

    Huber (1964), the weight function of his M-estimator, one-sided.

    >>> huber_weight(np.array([-1.0, 3.0, 12.0]), limit=3.0).tolist()
    [1.0, 1.0, 0.25]
    """
    return np.asarray(limit / np.maximum(severity, limit), dtype=np.float64)


def kept(findings: Findings) -> Weights:
    """Weight 0 for clients in doubt, 1 for the others.

    >>> kept(Findings(("a", "b"), np.zeros(2, bool), np.zeros(2), np.array([True, False]))).tolist()
    [0.0, 1.0]
    """
    doubted = findings.doubted if len(findings.doubted) else np.zeros(len(findings.client_ids), bool)
    return np.where(doubted, 0.0, 1.0)


@register("policy", "observe")
@dataclass(frozen=True)
class Observe:
    """Change nothing; only report."""

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        return excluded, np.ones(len(findings.client_ids))


@register("policy", "exclude")
@dataclass(frozen=True)
class Exclude:
    """Leave flagged clients out of this round only."""

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        return excluded, np.where(findings.flagged, 0.0, kept(findings))


@register("policy", "quarantine")
@dataclass(frozen=True)
class Quarantine:
    """Exclude flagged clients for good, or until they have been clean for ``parole`` rounds in a row.

    Clients in doubt are left out of the round.
    """

    parole: int | None = None
    suspends: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.parole is not None and self.parole < 1:
            raise ValueError(f"parole is a number of clean rounds, at least 1; got {self.parole}")

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        clean, weights = dict(excluded), kept(findings)
        held = {client for client, rounds in clean.items() if rounds != FOR_GOOD}
        for i in np.flatnonzero(among(held, findings.client_ids) | findings.flagged).tolist():
            client = findings.client_ids[i]
            if clean.get(client, 0) == FOR_GOOD:
                continue
            if findings.flagged[i]:
                clean[client] = FOR_GOOD if self.parole is None else 0
            else:
                clean[client] = clean[client] + 1 if weights[i] else 0
                if clean[client] >= (self.parole or 1):
                    del clean[client]
        return clean, np.where(among(clean, findings.client_ids), 0.0, weights)

    def asks(self, client_id: str, excluded: Mapping[str, int]) -> bool:
        return excluded.get(client_id, 0) != FOR_GOOD


@register("policy", "down_weight")
@dataclass(frozen=True)
class DownWeight:
    """Keep everybody, but give clients beyond ``limit`` robust deviations less weight."""

    limit: float = 3.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise ValueError(f"limit must be positive; got {self.limit}")

    def step(self, excluded: Mapping[str, int], findings: Findings) -> tuple[Mapping[str, int], Scores]:
        return excluded, huber_weight(findings.severity, self.limit)
