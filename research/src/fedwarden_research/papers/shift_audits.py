"""The studies of shifts by name: what each runs, prints and draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Result, Results, Sheet
from .shift_mitigations import cells, draw, run_measured, sheets
from .shift_pictures import CERTAINTY, CLIENTS, LAYERS, ROUNDS, SEVERITIES, SIZES
from .shift_tables import (
    alarms_table,
    by_clients,
    clients_table,
    fresh_table,
    layer_table,
    partial_table,
    severities,
    sight_table,
    smallest_table,
)
from .shifts import Setting, centralised, federated, layers, many, ratio, run, scalability

Draw = Callable[[Results, Path, str], Path]


@dataclass(frozen=True)
class Audit:
    """A study of leakage: its cells in a setting, its tables and picture, and the name under which runs are kept."""

    cells: Callable[[Sequence[int], str, Setting], list[tuple[Cell, Table]]]
    tables: tuple[Callable[[Results], list[Sheet]], ...]
    runs: str
    picture: Draw | None = None
    run: Callable[[Table], Result] = run


FRESH, PARTIAL = "All samples exchanged", "As few samples exchanged as it takes"


def fresh(found: Results) -> list[Sheet]:
    return by_clients(found, "fresh", FRESH, fresh_table)


def partial(found: Results) -> list[Sheet]:
    return by_clients(found, "partial", PARTIAL, partial_table)


def smallest(found: Results) -> list[Sheet]:
    title = "Smallest shift detected at 5 % false alarms, all samples exchanged"
    return [Sheet("smallest", title, smallest_table(found))]


def outputs(found: Results) -> list[Sheet]:
    alarms = Sheet("alarms", "Share of seeds with an alarm in the round of the change", alarms_table(found))
    return [*by_clients(found, "seen", "What is seen", sight_table), alarms]


def by_layer(found: Results) -> list[Sheet]:
    return [Sheet("auroc", f"AUROC of the shift to {ratio(severities(found)[-1])}", layer_table(found))]


def scaled(found: Results) -> list[Sheet]:
    """All numbers of clients side by side."""
    return [
        Sheet("fresh", f"{FRESH}, against an unshifted fresh swap", clients_table(found, "fresh")),
        Sheet("partial", f"{PARTIAL}, against an unshifted swap of as many", clients_table(found, "partial")),
    ]


AUDITS: Mapping[str, Audit] = {
    "audit-centralised": Audit(centralised, (fresh,), "centralised", ROUNDS),
    "audit-layers": Audit(layers, (by_layer,), "layers", LAYERS),
    "audit-sensitivity": Audit(federated, (fresh, partial), "sensitivity", SEVERITIES),
    "audit-many": Audit(many, (smallest, fresh, partial), "many", SIZES),
    "audit-outputs": Audit(federated, (outputs,), "sensitivity", CERTAINTY),
    "audit-scalability": Audit(scalability, (scaled,), "scalability", CLIENTS),
    "audit-mitigations": Audit(cells, (sheets,), "mitigations", draw, run_measured),
}
