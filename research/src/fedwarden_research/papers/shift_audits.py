"""The studies of shifts by name: what each runs, prints and draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwarden.studies.runner import Cell, Table
from fedwarden.studies.tables import Result, Results, Sheet

from .shift_mitigations import cells, draw, run_measured, sheets
from .shift_pictures import CERTAINTY, CLIENTS, LAYERS, ROUNDS, SEVERITIES, SIZES
from .shift_tables import (
    alarms,
    by_layer,
    fresh_by_clients,
    fresh_clients,
    partial_by_clients,
    partial_clients,
    seen_by_clients,
    smallest_clients,
)
from .shifts import Setting, centralised, federated, layers, many, run, scalability

Draw = Callable[[Results, Path, str], Path]


@dataclass(frozen=True)
class Audit:
    """A study of leakage: its cells in a setting, its tables and picture, and the name under which runs are kept."""

    cells: Callable[[Sequence[int], str, Setting], list[tuple[Cell, Table]]]
    tables: tuple[Callable[[Results], list[Sheet]], ...]
    runs: str
    picture: Draw | None = None
    run: Callable[[Table], Result] = run
    data: str = "mnist"


AUDITS: Mapping[str, Audit] = {
    "audit-centralised": Audit(centralised, (fresh_by_clients,), "centralised", ROUNDS),
    "audit-layers": Audit(layers, (by_layer,), "layers", LAYERS),
    "audit-sensitivity": Audit(federated, (fresh_by_clients, partial_by_clients), "sensitivity", SEVERITIES),
    "audit-many": Audit(many, (smallest_clients, fresh_by_clients, partial_by_clients), "many", SIZES),
    "audit-outputs": Audit(federated, (seen_by_clients, alarms), "sensitivity", CERTAINTY),
    "audit-scalability": Audit(scalability, (fresh_clients, partial_clients), "scalability", CLIENTS),
    "audit-mitigations": Audit(cells, (sheets,), "mitigations", draw, run_measured, "digits"),
}
