"""A recorded run as one value: its head, its rounds as arrays, what auditors saw; for notebooks, pages and exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import require
from ..core.html import facts
from ..core.types import Observation
from .contribution import WATCH as HARM
from .ledger import Ledger, Run
from .series import Series, columns, most_told
from .story import Story
from .word import Said, said_in


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run as it stood in the ledger when it was read.

    ``observations`` are what each auditor saw, by its name, which may be empty; ``said`` is the operator's word, in the
    order in which it was said. ``story`` tells it client by client, and ``reported`` names what clients reported.
    """

    run: Run
    story: Story
    observations: Mapping[str, tuple[Observation, ...]] = field(default_factory=dict)
    said: tuple[Said, ...] = ()
    reported: tuple[str, ...] = ()

    @classmethod
    def open(cls, which: str | int | None = None, folder: Path | None = None) -> RunRecord:
        """A run by number, by the latest of a name, or the latest of all; ``folder`` is its workspace."""
        with Ledger(folder, read_only=True) as ledger:
            return cls.read(ledger, which)

    @classmethod
    def read(cls, ledger: Ledger, which: str | int | None = None, whole: bool = True) -> RunRecord:
        """The same from a ledger that is open.

        One that is not ``whole`` has of all watches only that of harm in its series, and nothing that clients reported;
        its story reads rounds from the ledger, which has to stay open.
        """
        with ledger.snapshot():
            run = ledger.run(which)
            seen = {who: tuple(ledger.observations(run.id, who)) for who in ledger.observers(run.id)}
            said = tuple(said_in(ledger, run.id))
            story = Story.of(ledger.records(run.id) if whole else ledger.records(run.id, 0, (HARM,), ()))
            if not whole:
                story = replace(story, full=partial(ledger.record, run.id), watches=ledger.watches(run.id))
            return cls(run, story, seen, said, tuple(most_told(ledger.reported(run.id))))

    @property
    def series(self) -> Series:
        """Its rounds as arrays."""
        return self.story.series

    def metric(self, name: str) -> float | None:
        """The last value of a metric; None where there is none."""
        known = self.story.metric(name)
        return float(known[-1]) if len(known) else None

    def to_frame(self) -> Any:
        """A pandas frame with one row per round, client and watch: signal, score, threshold, flagged, weight, ..."""
        return require("pandas", "dashboard", "a frame").DataFrame(columns(self.series))

    def plot(
        self, watch: str | None = None, client: str | None = None, scale: str = "limit", dark: bool = False
    ) -> Any:
        """A Plotly figure: accuracy and loss, a watch's scores, or a client; scale: limit, linear, log or robust z."""
        return import_module("fedwarden.figures.guard").draw(self.story, watch, client, scale, dark)

    def _repr_html_(self) -> str:
        accuracy, story = self.metric("accuracy"), self.story
        told = {
            "state": self.run.state_in_words,
            "rounds": f"{len(self.series)} of {self.run.config.get('rounds', '?')}",
            "clients": len(self.series.clients),
            "watches": ", ".join(self.series.watches) or "none",
            "accuracy": "-" if accuracy is None else f"{accuracy:.1%}",
            "verdict": str(story),
            **{f"client {who}, {standing}": str(story.reason(who)) for who, standing in story.standings.items()},
        }
        return facts(told, f"run {self.run.id}: {self.run.name}")
