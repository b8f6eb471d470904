"""Rows of the ledger as values; whatever cannot be what was written is named by its column."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..core.notes import Note
from ..core.types import Observation, Rejection, RoundRecord, WatchRecord
from . import cells
from .cells import Damaged
from .schema import REMARKS

ERROR = "error"  # of a summary: why a run failed
SMALLEST, LARGEST = -(2**63), 2**63 - 1  # of SQLite's whole numbers


@dataclass(frozen=True)
class Run:
    """One run as the ledger knows it."""

    id: int
    name: str
    created: float
    state: str
    engine: str
    config: dict[str, Any]
    versions: dict[str, str]
    summary: dict[str, Any]
    rounds: int

    @property
    def identity(self) -> str:
        """What no other run has, of this ledger or of another one."""
        return f"run {self.id}, {self.name}, begun at {self.created!r}"

    @property
    def error(self) -> str:
        """Why it failed, in the words of the error; empty where it did not, or nobody wrote it down."""
        return str(self.summary.get(ERROR) or "") if self.state == "failed" else ""


def read_run(row: sqlite3.Row) -> Run:
    return Run(
        cells.whole(row, "id", 1, LARGEST),
        cells.text(row, "name"),
        cells.moment(row, "created"),
        cells.word(row, "state", cells.STATES),
        cells.text(row, "engine"),
        cells.table(row, "config", rounds=_is_figure, guard=_is_guard),
        _versions(row),
        cells.table(row, "summary", accuracy=_is_figure, excluded=_are_names, error=_is_text),
        cells.whole(row, "rounds"),
    )


def _versions(row: sqlite3.Row) -> dict[str, str]:
    found = cells.table(row, "versions")
    if not all(isinstance(value, str) for value in found.values()):
        raise Damaged("versions", "texts by name", found)
    return found


def _is_figure(found: object) -> bool:
    return found is None or cells.is_number(found)


def _is_text(found: object) -> bool:
    return isinstance(found, str | None)


def _is_guard(found: object) -> bool:
    return isinstance(found, dict) and isinstance(found.get("preset"), str | None)


def _are_names(found: object) -> bool:
    return isinstance(found, dict | list) and all(isinstance(name, str) for name in found)


def read_observation(row: sqlite3.Row) -> Observation:
    parts = cells.table(row, "parts")
    if not all(name.isdecimal() and cells.is_number(value) for name, value in parts.items()):
        raise Damaged("parts", "numbers by class", parts)
    return Observation(
        cells.whole(row, "round"),
        cells.text(row, "source"),
        cells.text(row, "metric"),
        cells.text(row, "layer"),
        cells.real(row, "value"),
        cells.real(row, "expected"),
        cells.real(row, "score"),
        cells.real(row, "p"),
        bool(cells.whole(row, "alarm", 0, 1)),
        parts,
    )


def read_record(
    head: sqlite3.Row,
    clients: tuple[str, ...],
    metrics: Sequence[sqlite3.Row],
    remarks: Sequence[sqlite3.Row],
    watches: Sequence[sqlite3.Row],
    reports: Sequence[sqlite3.Row] = (),
) -> RoundRecord:
    n = len(clients)
    cells.moment(head, "finished")
    for remark in remarks:
        cells.word(remark, "about", REMARKS)
    return RoundRecord(
        round=head["round"],
        client_ids=clients,
        num_examples=cells.vector(head, "num_examples", n),
        weights=cells.vector(head, "weights", n),
        watches=tuple(_watch(row, n) for row in watches),
        flagged=cells.mask(head, "flagged", n),
        excluded=cells.names("excluded", cells.text(head, "excluded")),
        rejected=tuple(
            Rejection(cells.text(r, "client"), _note(r, "note")) for r in remarks if r["about"] == "rejected"
        ),
        notes=tuple(_note(r, "note") for r in remarks if r["about"] == "note"),
        metrics={cells.text(m, "name"): cells.real(m, "value") for m in metrics},
        suspended=cells.names("suspended", cells.text(head, "suspended")),
        reported={cells.text(row, "name"): _by_client(row) for row in reports},
    )


def _by_client(row: sqlite3.Row) -> dict[str, float]:
    found = cells.table(row, "content")
    if not all(value is None or cells.is_number(value) for value in found.values()):
        raise Damaged("content", "numbers by client", found)
    return {client: math.nan if value is None else cells.as_float("content", value) for client, value in found.items()}


def _watch(row: sqlite3.Row, n: int) -> WatchRecord:
    return WatchRecord(
        cells.text(row, "watch"),
        cells.vector(row, "signal", n),
        cells.vector(row, "score", n),
        cells.real(row, "threshold", math.inf),
        cells.mask(row, "flagged", n),
        None if row["warning"] is None else _note(row, "warning"),
        cells.vectors(row, "parts", n),
        cells.text(row, "words"),
    )


def _note(row: sqlite3.Row, column: str) -> Note:
    return _note_of(column, cells.table(row, column))


def _note_of(column: str, table: Any) -> Note:
    match table:
        case {"kind": str(kind), "clients": [*clients], "values": dict(values)} if _are_names(clients):
            cause = _note_of(column, table["cause"]) if "cause" in table else None
            return Note(kind, tuple(clients), {name: _frozen(value) for name, value in values.items()}, cause)
    raise Damaged(column, "a note: kind, clients, values", table)


def _frozen(value: Any) -> Any:
    """A list as the tuple that it was written from."""
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
