"""Values as rows of the ledger, and rows as values; whatever cannot be what was written is named by its column."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ..core.notes import Note
from ..core.types import Observation, Rejection, RoundRecord, WatchRecord
from . import cells
from .cells import Damaged, utf8
from .schema import REMARKS

ERROR = "error"  # of a summary: why a run failed
Row = tuple[object, ...]
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
    committed: float | None = None
    """When its last round was, in seconds since 1970; None before the first."""

    @property
    def state_in_words(self) -> str:
        """Its state in words.

        >>> Run(3, "ward", 0.0, "interrupted", "in-process", {}, {}, {}, 2, committed=90.0).state_in_words
        'interrupted since 1970-01-01 00:01 UTC'
        """
        if self.state != "interrupted":
            return self.state
        since = datetime.fromtimestamp(self.created if self.committed is None else self.committed, UTC)
        return f"interrupted since {since:%Y-%m-%d %H:%M} UTC"

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
        cells.table(row, "config", rounds=_is_figure, guard=_is_guard, trusted=_are_names),
        _versions(row),
        cells.table(
            row, "summary", accuracy=_is_figure, excluded=_are_names, error=lambda found: isinstance(found, str | None)
        ),
        cells.whole(row, "rounds"),
    )


def _versions(row: sqlite3.Row) -> dict[str, str]:
    found = cells.table(row, "versions")
    if not all(isinstance(value, str) for value in found.values()):
        raise Damaged("versions", "texts by name", found)
    return found


def _is_figure(found: object) -> bool:
    return found is None or cells.is_number(found)


def _is_guard(found: object) -> bool:
    if not isinstance(found, dict):
        return False
    return isinstance(found.get("preset"), str | None) and _are_names(found.get("trusted") or [])


def _are_names(found: object) -> bool:
    return isinstance(found, dict | list) and all(isinstance(name, str) for name in found)


def read_observation(row: sqlite3.Row) -> Observation:
    parts = cells.table(row, "parts")
    if not all(map(cells.is_number, parts.values())):
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


def round_rows(run: int, record: RoundRecord, numbers: Mapping[str, int], finished: float) -> dict[str, list[Row]]:
    """The rows of a round by table, each in the order of its columns; clients are ``numbers``."""
    key = (run, record.round)

    def packed(clients: Iterable[str]) -> bytes:
        return np.array([numbers[utf8(c)] for c in clients], "<i4").tobytes()

    head = (
        *key, finished, cells.by_name(record.metrics), packed(record.client_ids), cells.places(record.flagged),
        packed(record.excluded), packed(record.suspended), cells.floats(record.num_examples),
        cells.floats(record.weights),
    )  # fmt: skip
    watches: list[Row] = [
        (
            *key, w.name, i, cells.number(w.threshold), None if w.warning is None else json.dumps(w.warning.table()),
            w.words, cells.places(w.flagged), cells.floats(w.signal), cells.floats(w.scores),
            json.dumps(list(w.parts)), b"".join(map(cells.floats, w.parts.values())),
        )
        for i, w in enumerate(record.watches)
    ]  # fmt: skip
    remarks: list[Row] = [("rejected", utf8(r.client_id), json.dumps(r.reason.table())) for r in record.rejected]
    remarks += [("note", None, json.dumps(note.table())) for note in record.notes]
    return {
        "round": [head],
        "watch": watches,
        "remark": [(*key, i, *remark) for i, remark in enumerate(remarks)],
        "report": [
            (*key, utf8(name), packed(told), cells.floats(np.array([*told.values()], np.float64)))
            for name, told in record.reported.items()
        ],
    }


def clients_in(record: RoundRecord) -> tuple[str, ...]:
    """Every client that has a number in a round's rows, as the ledger spells it."""
    told = (client for values in record.reported.values() for client in values)
    return tuple(dict.fromkeys(map(utf8, (*record.client_ids, *record.excluded, *record.suspended, *told))))


def read_record(
    head: sqlite3.Row,
    names: Callable[[str, object], tuple[str, ...]],
    remarks: Sequence[sqlite3.Row] = (),
    watches: Sequence[sqlite3.Row] = (),
    reports: Sequence[sqlite3.Row] = (),
) -> RoundRecord:
    """A round from its rows; ``names`` reads the clients of a column."""
    clients = names("clients", head["clients"])
    n = len(clients)
    cells.moment(head, "finished")
    reported = {}
    for row in reports:
        told = names("clients", row["clients"])
        values = cells.vector(row, "content", len(told)).tolist()
        reported[cells.text(row, "name")] = dict(zip(told, values, strict=True))
    for remark in remarks:
        cells.word(remark, "about", REMARKS)
    return RoundRecord(
        round=head["round"],
        client_ids=clients,
        num_examples=cells.vector(head, "num_examples", n),
        weights=cells.vector(head, "weights", n),
        watches=tuple(_watch(row, n) for row in watches),
        flagged=cells.mask(head, "flagged", n),
        excluded=names("excluded", head["excluded"]),
        rejected=tuple(
            Rejection(cells.text(r, "client"), note_in(r, "note")) for r in remarks if r["about"] == "rejected"
        ),
        notes=tuple(note_in(r, "note") for r in remarks if r["about"] == "note"),
        metrics=numbers_in(head, "metrics"),
        suspended=names("suspended", head["suspended"]),
        reported=reported,
    )


def numbers_in(row: sqlite3.Row, column: str) -> dict[str, float]:
    """A JSON table of numbers."""
    found = cells.table(row, column)
    if not all(value is None or cells.is_number(value) for value in found.values()):
        raise Damaged(column, "numbers by name", found)
    return {name: math.nan if value is None else cells.as_float(column, value) for name, value in found.items()}


def _watch(row: sqlite3.Row, n: int) -> WatchRecord:
    names = cells.names(row, "parts")
    parts = cells.vector(row, "part", n * len(names)).reshape(len(names), n)
    return WatchRecord(
        cells.text(row, "watch"),
        cells.vector(row, "signal", n),
        cells.vector(row, "score", n),
        cells.real(row, "threshold", math.inf),
        cells.mask(row, "flagged", n),
        None if row["warning"] is None else note_in(row, "warning"),
        dict(zip(names, parts, strict=True)),
        cells.text(row, "words"),
    )


def note_in(row: sqlite3.Row, column: str) -> Note:
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
