"""A recorded run as one value: its head, its rounds as arrays, what auditors saw; for notebooks, pages and exports."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ..core.series import Series
from ..core.types import Observation
from .ledger import Ledger, Run


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it stood in the ledger when it was read."""

    run: Run
    series: Series
    observations: tuple[Observation, ...] = ()

    @classmethod
    def open(cls, which: str | int | None = None, folder: Path | None = None) -> RunRecord:
        """A run by number, by the latest of a name, or the latest of all; ``folder`` is its workspace."""
        with Ledger(folder, read_only=True) as ledger, ledger.snapshot():
            run = ledger.run(which)
            return cls(run, read_series(ledger, run.id), tuple(ledger.observations(run.id)))


def read_series(ledger: Ledger, run: int, watches: Collection[str] | None = None, after: int = 0) -> Series:
    """The rounds of a run after one of them as arrays, with some of its watches or all."""
    return Series.of(ledger.records(run, after, watches))
