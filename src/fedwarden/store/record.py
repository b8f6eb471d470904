"""A recorded run as one value: its head, its rounds as arrays, what auditors saw; for notebooks, pages and exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import require
from ..core.html import facts
from ..core.types import Observation
from .explain import Reason
from .ledger import Ledger, Run
from .overview import reasons
from .series import Series, columns
from .verdict import verdict, why
from .word import Said, said_in


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it stood in the ledger when it was read.

    ``observations`` are what each auditor saw, by its name, which may be empty; ``reasons`` say of each excluded client
    why it was; ``said`` is the operator's word, in the order in which it was said.
    """

    run: Run
    series: Series
    observations: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    said: tuple[Said, ...] = ()

    @classmethod
    def open(cls, which: str | int | None = None, folder: Path | None = None) -> RunRecord:
        """A run by number, by the latest of a name, or the latest of all; ``folder`` is its workspace."""
        with Ledger(folder, read_only=True) as ledger:
            return cls.read(ledger, which)

    @classmethod
    def read(cls, ledger: Ledger, which: str | int | None = None) -> RunRecord:
        """The same from a ledger that is open."""
        with ledger.snapshot():
            run = ledger.run(which)
            records = ledger.records(run.id)
            series = Series.of(records)
            seen = {who: tuple(ledger.observations(run.id, who)) for who in ledger.observers(run.id)}
            told = reasons(records, series.excluded_in)
            return cls(run, series, seen, told, tuple(said_in(ledger, run.id)))

    def metric(self, name: str) -> float | None:
        """The last value of a metric; None where there is none."""
        values = self.series.metrics.get(name, np.zeros(0))
        known = values[np.isfinite(values)]
        return float(known[-1]) if len(known) else None

    def to_frame(self) -> Any:
        """A pandas frame with one row per round, client and watch: signal, score, threshold, flagged, weight, ..."""
        return require("pandas", "dashboard", "a frame").DataFrame(columns(self.series))

    def plot(
        self, watch: str | None = None, client: str | None = None, scale: str = "limit", dark: bool = False
    ) -> Any:
        """A Plotly figure: accuracy and loss, a watch's scores, or a client; scale: limit, linear, log or robust z."""
        return import_module("fedwarden.figures.guard").draw(self.series, watch, client, scale, dark)

    def _repr_html_(self) -> str:
        accuracy, found = self.metric("accuracy"), verdict(self.series)
        told = {
            "state": self.run.state,
            "rounds": f"{len(self.series)} of {self.run.config.get('rounds', '?')}",
            "clients": len(self.series.clients),
            "watches": ", ".join(self.series.watches) or "none",
            "accuracy": "-" if accuracy is None else f"{accuracy:.1%}",
            "verdict": str(found),
            **{f"client {s.client}, {s}": why(s, self.reasons.get(s.client)) for s in found.standings},
        }
        return facts(told, f"run {self.run.id}: {self.run.name}")
