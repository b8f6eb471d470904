"""The ledger: one SQLite file per workspace that holds every run, round and verdict.

It is written in WAL mode, one transaction per round, so it can be read while a run writes and loses no committed round
to a crash. Nothing in a round reads it back. What a round has by client is one JSON array a column, which is quicker to
write and to read than a row per client; the views ``client`` and ``score`` show them as rows to any SQL program.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..core.errors import FedwardenError
from ..core.stats import Mask, Scores
from ..core.types import Observation, Rejection, RoundRecord, WatchRecord

BEFORE = 3  # schemas of before the first release, which are not read any more
MIGRATIONS = (
    """
    CREATE TABLE run (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL, created REAL NOT NULL, state TEXT NOT NULL, engine TEXT NOT NULL,
        config TEXT NOT NULL, versions TEXT NOT NULL, summary TEXT NOT NULL DEFAULT '{}'
    );
    CREATE TABLE round (
        run INTEGER NOT NULL REFERENCES run, round INTEGER NOT NULL, finished REAL NOT NULL, clients TEXT NOT NULL,
        num_examples TEXT NOT NULL, weights TEXT NOT NULL, flagged TEXT NOT NULL, excluded TEXT NOT NULL,
        PRIMARY KEY (run, round)
    ) WITHOUT ROWID;
    CREATE TABLE metric (
        run INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, value REAL,
        PRIMARY KEY (run, name, round)
    ) WITHOUT ROWID;
    CREATE TABLE watch (
        run INTEGER NOT NULL, watch TEXT NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, threshold REAL,
        warning TEXT, words TEXT NOT NULL, signal TEXT NOT NULL, score TEXT NOT NULL, flagged TEXT NOT NULL,
        parts TEXT NOT NULL,
        PRIMARY KEY (run, watch, round)
    ) WITHOUT ROWID;
    CREATE TABLE remark (
        run INTEGER NOT NULL, round INTEGER NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, client TEXT,
        text TEXT NOT NULL,
        PRIMARY KEY (run, round, position)
    ) WITHOUT ROWID;
    CREATE TABLE audit (
        run INTEGER NOT NULL, observer TEXT NOT NULL, source TEXT NOT NULL, metric TEXT NOT NULL, layer TEXT NOT NULL,
        round INTEGER NOT NULL, position INTEGER NOT NULL, value REAL, expected REAL, score REAL, p REAL,
        alarm INTEGER NOT NULL, parts TEXT NOT NULL,
        PRIMARY KEY (run, observer, source, metric, layer, round)
    ) WITHOUT ROWID;
    CREATE VIEW client AS
        SELECT run, round, each.key AS position, each.value AS client,
            json_extract(num_examples, '$[' || each.key || ']') AS num_examples,
            json_extract(weights, '$[' || each.key || ']') AS weight,
            each.key IN (SELECT value FROM json_each(round.flagged)) AS flagged
        FROM round, json_each(round.clients) AS each;
    CREATE VIEW score AS
        SELECT run, watch, round, each.key AS position, each.value AS signal,
            json_extract(score, '$[' || each.key || ']') AS score,
            each.key IN (SELECT value FROM json_each(watch.flagged)) AS flagged
        FROM watch, json_each(watch.signal) AS each;
    """,
)
SCHEMA = BEFORE + len(MIGRATIONS)
PATIENCE = 30.0  # seconds to wait for another process that writes
ROUND_TABLES = ("round", "metric", "watch", "remark")


class LedgerError(FedwardenError):
    """A ledger that cannot be read or written."""


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


def home() -> Path:
    """The workspace: FEDWARDEN_HOME, else ./fedwarden-runs."""
    return Path(os.environ.get("FEDWARDEN_HOME") or "fedwarden-runs")


class Ledger:
    """Reads and appends; use it as a context or close it."""

    def __init__(
        self, folder: Path | None = None, create: bool = True, read_only: bool = False, patience: float = PATIENCE
    ) -> None:
        """``read_only`` writes nothing, not even a newer schema; no run is in its way. ``patience`` is in seconds."""
        self.folder = folder or home()
        self.path = self.folder / "ledger.sqlite"
        if (read_only or not create) and not self.path.is_file():
            raise LedgerError(f"no ledger in {self.folder}; run something first, or set FEDWARDEN_HOME to its folder")
        try:
            if read_only:
                address = f"file:{quote(str(self.path.absolute()))}?mode=ro"
                self.db = sqlite3.connect(address, timeout=patience, isolation_level=None, uri=True)
                self.db.row_factory = sqlite3.Row
                self._check(version := self.db.execute("PRAGMA user_version").fetchone()[0])
                if version < SCHEMA:
                    raise LedgerError(
                        f"the ledger {self.path} has schema {version} and not {SCHEMA}; "
                        "`fedwarden runs` brings it up to date"
                    )
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(self.path, timeout=patience, isolation_level=None)
            self.db.row_factory = sqlite3.Row
            self._write_ahead()
            self.db.execute("PRAGMA synchronous = FULL")
            self._migrate()
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"cannot open the ledger {self.path}: {error}") from error

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.db.close()

    def start(self, name: str, engine: str, config: Mapping[str, Any], versions: Mapping[str, str]) -> int:
        """Begin a run; its number is its name for the other commands."""
        with self._transaction():
            cursor = self.db.execute(
                "INSERT INTO run (name, created, state, engine, config, versions) VALUES (?, ?, 'running', ?, ?, ?)",
                (name, time.time(), engine, json.dumps(config), json.dumps(versions)),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def finish(self, run: int, state: str, summary: Mapping[str, Any] | None = None) -> None:
        """Set the state of a run (done, failed, interrupted, running) and, where given, its summary."""
        with self._transaction():
            self.db.execute("UPDATE run SET state = ? WHERE id = ?", (state, run))
            if summary is not None:
                self.db.execute("UPDATE run SET summary = ? WHERE id = ?", (json.dumps(summary), run))

    def reopen(self, run: int, config: Mapping[str, Any]) -> None:
        """Continue a run, perhaps with more rounds than it was started with."""
        with self._transaction():
            self.db.execute("UPDATE run SET state = 'running', config = ? WHERE id = ?", (json.dumps(config), run))

    def append(self, run: int, record: RoundRecord) -> None:
        """Commit one round; a round that is there already, as after a resume, is replaced by the same numbers."""
        key = (run, record.round)
        with self._transaction():
            for table in ROUND_TABLES:
                self.db.execute(f"DELETE FROM {table} WHERE run = ? AND round = ?", key)
            self.db.execute(
                "INSERT INTO round VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *key, time.time(), json.dumps(record.client_ids), _array(record.num_examples),
                    _array(record.weights), _places(record.flagged), json.dumps(record.excluded),
                ),
            )  # fmt: skip
            self.db.executemany(
                "INSERT INTO metric VALUES (?, ?, ?, ?)", [(*key, k, _number(v)) for k, v in record.metrics.items()]
            )
            self.db.executemany(
                "INSERT INTO watch VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        run, w.name, record.round, i, _number(w.threshold), w.warning, w.words, _array(w.signal),
                        _array(w.scores), _places(w.flagged), _arrays(w.parts),
                    )
                    for i, w in enumerate(record.watches)
                ],
            )  # fmt: skip
            remarks: list[tuple[str, str | None, str]] = [("rejected", r.client_id, r.reason) for r in record.rejected]
            remarks += [("note", None, note) for note in record.notes]
            self.db.executemany(
                "INSERT INTO remark VALUES (?, ?, ?, ?, ?, ?)", [(*key, i, *remark) for i, remark in enumerate(remarks)]
            )

    def observe(self, run: int, observations: Sequence[Observation], observer: str = "") -> None:
        """Commit what an auditor saw, such as one round of it; what is there already is replaced."""
        with self._transaction():
            self.db.executemany(
                "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        run, observer, o.source, o.metric, o.layer, o.round, i,
                        *(_number(x) for x in (o.value, o.expected, o.score, o.p)), o.alarm, json.dumps(dict(o.parts)),
                    )
                    for i, o in enumerate(observations)
                ],
            )  # fmt: skip

    def observations(self, run: int, observer: str = "") -> list[Observation]:
        """What an auditor saw, as it was recorded, round by round."""
        return [
            Observation(
                o["round"], o["source"], o["metric"], o["layer"], _float(o["value"]), _float(o["expected"]),
                _float(o["score"]), _float(o["p"]), bool(o["alarm"]), json.loads(o["parts"]),
            )
            for o in self._rows("audit", run, "AND observer = ? ORDER BY round, position", observer)
        ]  # fmt: skip

    def observers(self, run: int) -> tuple[str, ...]:
        """Whose observations a run has."""
        return tuple(row["observer"] for row in self._rows("audit", run, "GROUP BY observer ORDER BY observer"))

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        rows = self._query(
            "SELECT run.*, (SELECT COUNT(*) FROM round WHERE round.run = run.id) AS rounds FROM run ORDER BY id DESC"
        )
        return [_run(row) for row in rows]

    def run(self, which: str | int | None = None) -> Run:
        """A run by number, by the latest of a name, or the latest of all."""
        found = self.runs()
        if which is None:
            matching = found
        else:
            matching = [r for r in found if str(r.id) == str(which)] or [r for r in found if r.name == str(which)]
        if not matching:
            known = ", ".join(f"{r.id} ({r.name})" for r in found[:10]) or "none"
            raise LedgerError(f"no run {which if which is not None else ''} in {self.path}; there are: {known}")
        return matching[0]

    def records(self, run: int, after: int = 0, watches: Collection[str] | None = None) -> list[RoundRecord]:
        """The rounds of a run after one of them, in order, as they were recorded; with some watches only or all."""
        return self._records(run, watches, "AND round > ?", after)

    def record(self, run: int, round: int) -> RoundRecord:
        """One round as it was recorded."""
        found = self._records(run, None, "AND round = ?", round)
        if not found:
            raise LedgerError(f"run {run} has no round {round}")
        return found[0]

    def _records(self, run: int, watches: Collection[str] | None, which: str, bound: int) -> list[RoundRecord]:
        def by_round(table: str, order: str = "", *names: str) -> dict[int, list[sqlite3.Row]]:
            only = f"AND watch IN ({', '.join('?' * len(names))})" if names else ""
            found: dict[int, list[sqlite3.Row]] = {}
            for row in self._rows(table, run, f"{which} {only} {order}", bound, *names):
                found.setdefault(row["round"], []).append(row)
            return found

        with self.snapshot():
            heads = by_round("round", "ORDER BY round")
            metrics, remarks = by_round("metric"), by_round("remark", "ORDER BY position")
            seen = {} if watches is not None and not watches else by_round("watch", "ORDER BY position", *watches or ())
        names = cache(json.loads)  # most rounds have the clients of the one before
        return [
            _record(head, names(head["clients"]), *(found.get(t, []) for found in (metrics, remarks, seen)))
            for t, (head,) in heads.items()
        ]

    def watches(self, run: int) -> tuple[str, ...]:
        """The names of a run's watches, in their order."""
        rows = self._rows("watch", run, "GROUP BY watch ORDER BY MIN(position)")
        return tuple(row["watch"] for row in rows)

    def loudest(self, run: int) -> str | None:
        """The watch that flagged most clients so far, of equals the first; None where nothing watched."""
        rows = self._query(
            "SELECT watch.watch FROM watch JOIN round USING (run, round) LEFT JOIN json_each(watch.flagged) AS each "
            "WHERE run = ? GROUP BY watch.watch "
            "ORDER BY COUNT(DISTINCT json_extract(clients, '$[' || each.value || ']')) DESC, MIN(position) LIMIT 1",
            run,
        )
        return rows[0]["watch"] if rows else None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside belongs to one moment, whatever a run commits meanwhile; may be nested."""
        outermost = not self.db.in_transaction
        if outermost:
            self._query("BEGIN")
        try:
            yield
        finally:
            if outermost:
                self._query("COMMIT")

    def metric(self, run: int, name: str) -> dict[int, float]:
        """One metric of a run by round."""
        rows = self._rows("metric", run, "AND name = ? ORDER BY round", name)
        return {row["round"]: _float(row["value"]) for row in rows}

    def last_round(self, run: int) -> int:
        """The last committed round; 0 before the first."""
        return int(self._query("SELECT COALESCE(MAX(round), 0) FROM round WHERE run = ?", run)[0][0])

    def _rows(self, table: str, run: int, tail: str = "", *values: Any) -> list[sqlite3.Row]:
        return self._query(f"SELECT * FROM {table} WHERE run = ? {tail}", run, *values)

    def _query(self, sql: str, *values: Any) -> list[sqlite3.Row]:
        try:
            return self.db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise LedgerError(f"cannot read the ledger {self.path}: {error}") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """All or nothing, whatever goes wrong inside."""
        try:
            self.db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")
        except sqlite3.DatabaseError as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise LedgerError(f"cannot write to the ledger {self.path}: {error}") from error

    def _write_ahead(self) -> None:
        """Switch to WAL; SQLite does not wait by itself for another process that does so at the same moment."""
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                self.db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > patience:
                    raise
                time.sleep(0.02)

    def _migrate(self) -> None:
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA:
            return
        with self._transaction():
            version = self.db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been first
            self._check(version)
            for migration in MIGRATIONS[max(version - BEFORE, 0) :]:
                for statement in migration.split(";"):
                    self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _check(self, version: int) -> None:
        """Refuse a schema that cannot be read; 0 is an empty file."""
        if version > SCHEMA:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}; this version of fedwarden knows up to {SCHEMA}: "
                "use a newer one"
            )
        if 0 < version <= BEFORE:
            raise LedgerError(
                f"the ledger {self.path} was written before the first release (schema {version}); "
                "keep it with that version, and start in another folder (FEDWARDEN_HOME)"
            )


def _run(row: sqlite3.Row) -> Run:
    return Run(
        row["id"], row["name"], row["created"], row["state"], row["engine"], json.loads(row["config"]),
        json.loads(row["versions"]), json.loads(row["summary"]), row["rounds"],
    )  # fmt: skip


def _record(
    head: sqlite3.Row,
    clients: Sequence[str],
    metrics: Sequence[sqlite3.Row],
    remarks: Sequence[sqlite3.Row],
    watches: Sequence[sqlite3.Row],
) -> RoundRecord:
    return RoundRecord(
        round=head["round"],
        client_ids=tuple(clients),
        num_examples=_vector(head["num_examples"]),
        weights=_vector(head["weights"]),
        watches=tuple(_watch(row, len(clients)) for row in watches),
        flagged=_mask(head["flagged"], len(clients)),
        excluded=tuple(json.loads(head["excluded"])),
        rejected=tuple(Rejection(r["client"], r["text"]) for r in remarks if r["kind"] == "rejected"),
        notes=tuple(r["text"] for r in remarks if r["kind"] == "note"),
        metrics={m["name"]: _float(m["value"]) for m in metrics},
    )


def _watch(row: sqlite3.Row, n: int) -> WatchRecord:
    parts = {part: np.array(values, dtype=np.float64) for part, values in json.loads(row["parts"]).items()}
    return WatchRecord(
        row["watch"], _vector(row["signal"]), _vector(row["score"]), _float(row["threshold"], math.inf),
        _mask(row["flagged"], n), row["warning"], parts, row["words"],
    )  # fmt: skip


def _number(value: float) -> float | None:
    """SQLite keeps NaN as NULL; infinities are kept as they are."""
    return None if math.isnan(value) else float(value)


def _float(value: float | None, missing: float = math.nan) -> float:
    return missing if value is None else float(value)


def _array(values: Scores) -> str:
    """A vector as JSON, digit for digit: null for NaN, and infinity as a number that is too large for a float."""
    return json.dumps(values.tolist()).replace("NaN", "null").replace("Infinity", "9e999")


def _vector(text: str) -> Scores:
    return np.array(json.loads(text), dtype=np.float64)


def _arrays(parts: Mapping[str, Scores]) -> str:
    return "{" + ", ".join(f"{json.dumps(part)}: {_array(values)}" for part, values in parts.items()) + "}"


def _places(flagged: Mask) -> str:
    return json.dumps(np.flatnonzero(flagged).tolist())


def _mask(text: str, n: int) -> Mask:
    out = np.zeros(n, bool)
    out[json.loads(text)] = True
    return out
