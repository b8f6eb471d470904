"""The ledger: one SQLite file per workspace that holds every run, round and verdict.

It is written in WAL mode, one transaction per round, so it can be read while a run writes and loses no committed round
to a crash. A round reads back one thing, the operator's word, as it begins. What a round has by client is one JSON
array a column, which is quicker to write and to read than a row per client; the views ``client`` and ``score`` show
them as rows to any SQL program.

A ledger may be damaged or made by a stranger: whatever cannot be read as what was written is a :class:`LedgerError`
that names the run, the round and the column, and no query runs for ever.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from ..core.types import Observation, RoundRecord
from . import cells
from .cells import Damaged
from .claim import is_abandoned
from .connection import ERRORS, failed, log_of, open_reader, open_writer, strangers
from .connection import LedgerError as LedgerError
from .connection import OldLedger as OldLedger
from .parse import LARGEST, SMALLEST, read_observation, read_record, read_run
from .parse import Run as Run
from .rows import round_rows
from .schema import BEFORE, MIGRATIONS, ROUND_TABLES, SCHEMA, STATEMENTS

PATIENCE = 30.0  # seconds to wait for another process that writes
LIMIT = 60.0  # seconds of computing after which a query is given up; sound ledgers answer in a second
STEPS = 100_000  # of SQLite's machine between two looks at the clock, some milliseconds
BATCH = 500  # rows
SPARE = 1 << 20  # bytes that a query may return beyond the size of the file


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
        self.copied: TemporaryDirectory[str] | None = None
        self.writes = not read_only
        if (read_only or not create) and not self.path.is_file():
            raise LedgerError(f"no ledger in {self.folder}; run something first, or set FEDWARDEN_HOME to its folder")
        with self._opening():
            if read_only:
                self.db, self.copied = open_reader(self.path, patience)
            else:
                self.folder.mkdir(parents=True, exist_ok=True)
                self.db = open_writer(self.path, patience)
        self._allow(LIMIT)
        self.db.set_progress_handler(lambda: time.monotonic() > self.deadline, STEPS)
        try:
            with self._opening():
                if not read_only:
                    self._write_ahead()
                    self.db.execute("PRAGMA synchronous = FULL")
                    self._migrate()
                self._check_schema()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of it; what was written goes from the log into the file, so that read access suffices to read it."""
        if self.writes:
            with suppress(*ERRORS):  # somebody who reads it now, or a ledger that is damaged
                self.db.execute("PRAGMA busy_timeout = 0")
                self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self.db.close()
        if self.copied is not None:
            self.copied.cleanup()

    def start(self, name: str, engine: str, config: Mapping[str, Any], versions: Mapping[str, str]) -> int:
        """Begin a run; its number is its name for the other commands."""
        with self.transaction():
            cursor = self.db.execute(
                "INSERT INTO run (name, created, state, engine, config, versions) VALUES (?, ?, 'running', ?, ?, ?)",
                (name, time.time(), engine, json.dumps(config), json.dumps(versions)),
            )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    def finish(self, run: int, state: str, summary: Mapping[str, Any] | None = None) -> None:
        """Set the state of a run (done, failed, interrupted, running) and, where given, its summary."""
        with self.transaction():
            self.db.execute("UPDATE run SET state = ? WHERE id = ?", (state, run))
            if summary is not None:
                self.db.execute("UPDATE run SET summary = ? WHERE id = ?", (json.dumps(summary), run))

    def reopen(self, run: int, config: Mapping[str, Any]) -> None:
        """Continue a run, perhaps with more rounds than it was started with."""
        with self.transaction():
            self.db.execute("UPDATE run SET state = 'running', config = ? WHERE id = ?", (json.dumps(config), run))

    def append(self, run: int, record: RoundRecord) -> None:
        """Commit one round; a round that is there already, as after a resume, is replaced by the same numbers."""
        key = (run, record.round)
        with self.transaction():
            for table in ROUND_TABLES:
                self.db.execute(f"DELETE FROM {table} WHERE run = ? AND round = ?", key)
            for table, rows in round_rows(run, record).items():
                if rows:
                    self.db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def observe(self, run: int, observations: Sequence[Observation], observer: str = "") -> None:
        """Commit what an auditor saw, such as one round of it; what is there already is replaced."""
        with self.transaction():
            self.db.executemany(
                "INSERT OR REPLACE INTO audit VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (
                        run, observer, o.source, o.metric, o.layer, o.round, i,
                        *(cells.number(x) for x in (o.value, o.expected, o.score, o.p)), o.alarm,
                        json.dumps(dict(o.parts)),
                    )
                    for i, o in enumerate(observations)
                ],
            )  # fmt: skip

    def observations(self, run: int, observer: str = "") -> list[Observation]:
        """What an auditor saw, as it was recorded, round by round."""
        rows = self.rows("audit", run, "AND observer = ? ORDER BY round, position", observer)
        with self.reading(f"run {run}, audit by {observer!a}"):
            return [read_observation(row) for row in rows]

    def observers(self, run: int) -> tuple[str, ...]:
        """Whose observations a run has."""
        rows = self.rows("audit", run, "GROUP BY observer ORDER BY observer")
        with self.reading(f"run {run}, audit"):
            return tuple(cells.text(row, "observer") for row in rows)

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return self.heads("ORDER BY id DESC")

    def run(self, which: str | int | None = None) -> Run:
        """A run by number, by the latest of a name, or the latest of all."""
        named = "" if which is None else str(which)
        number = int(named) if named.isdecimal() and len(named) < 20 else 0
        if number <= LARGEST and (found := self.heads("WHERE id = ?", number)):
            return found[0]
        found = self.runs()
        matching = found if which is None else [r for r in found if r.name == named]
        if not matching:
            known = [f"{r.id} ({r.name if r.name.isprintable() else ascii(r.name)})" for r in found[:10]]
            raise LedgerError(f"no run {named} in {self.path}; there are: {', '.join(known) or 'none'}")
        return matching[0]

    def heads(self, tail: str, *values: object) -> list[Run]:
        """The runs that the end of a query asks for; one that was running and has no writer any more is interrupted."""
        rows = self.query(
            "SELECT run.*, (SELECT COUNT(*) FROM round WHERE round.run = run.id) AS rounds, (SELECT finished FROM "
            f"round WHERE round.run = run.id ORDER BY round DESC LIMIT 1) AS committed FROM run {tail}",
            *values,
        )
        found = []
        for row in rows:
            with self.reading(f"run {row['id']}"):
                run = replace(read_run(row), committed=cells.moment(row, "committed") if row["rounds"] else None)
                if run.state == "running" and is_abandoned(self.folder, run.id, run.committed):
                    run = replace(run, state="interrupted")
                found.append(run)
        return found

    def records(self, run: int, after: int = 0, watches: Collection[str] | None = None) -> list[RoundRecord]:
        """The rounds of a run after one of them, in order, as they were recorded; with some watches only or all."""
        return self.records_where(run, watches, "AND round > ?", after or SMALLEST)  # what is below 1 is damage

    def record(self, run: int, round: int) -> RoundRecord:
        """One round as it was recorded."""
        found = self.records_where(run, None, "AND round = ?", round)
        if not found:
            raise LedgerError(f"run {run} has no round {round}")
        return found[0]

    def records_where(self, run: int, watches: Collection[str] | None, which: str, bound: int) -> list[RoundRecord]:
        """The rounds for which a condition with one value holds."""

        def by_round(table: str, order: str = "", *names: str) -> dict[int, list[sqlite3.Row]]:
            only = f"AND watch IN ({', '.join('?' * len(names))})" if names else ""
            found: dict[int, list[sqlite3.Row]] = {}
            for row in self.rows(table, run, f"{which} {only} {order}", bound, *names):
                with self.reading(f"run {run}, table {table}"):
                    found.setdefault(cells.whole(row, "round", 1), []).append(row)
            return found

        with self.snapshot():
            heads = by_round("round", "ORDER BY round")
            metrics, remarks = by_round("metric"), by_round("remark", "ORDER BY position")
            reports = by_round("report")
            seen = {} if watches is not None and not watches else by_round("watch", "ORDER BY position", *watches or ())
        for table, rows in (("metric", metrics), ("remark", remarks), ("report", reports), ("watch", seen)):
            if lost := rows.keys() - heads.keys():
                raise self._damaged(f"run {run}: table {table} has round {min(lost)}, which is not there")
        names = cache(partial(cells.names, "clients"))  # most rounds have the clients of the one before
        records = []
        for t, (head, *more) in heads.items():
            with self.reading(f"run {run}, round {t}"):
                if more:
                    raise Damaged("round", "every round once", t)
                clients = names(cells.text(head, "clients"))
                rest = (found.get(t, []) for found in (metrics, remarks, seen, reports))
                records.append(read_record(head, clients, *rest))
        return records

    def watches(self, run: int) -> tuple[str, ...]:
        """The names of a run's watches, in their order."""
        rows = self.rows("watch", run, "GROUP BY watch ORDER BY MIN(position)")
        with self.reading(f"run {run}, table watch"):
            return tuple(cells.text(row, "watch") for row in rows)

    def loudest(self, run: int) -> str | None:
        """The watch that flagged most clients so far, of equals the first; None where nothing watched."""
        rows = self.query(
            "SELECT watch.watch FROM watch JOIN round USING (run, round) LEFT JOIN json_each(watch.flagged) AS each "
            "WHERE run = ? GROUP BY watch.watch "
            "ORDER BY COUNT(DISTINCT json_extract(clients, '$[' || each.value || ']')) DESC, MIN(position) LIMIT 1",
            run,
        )
        with self.reading(f"run {run}, table watch"):
            return cells.text(rows[0], "watch") if rows else None

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Everything read inside belongs to one moment, whatever a run commits meanwhile; may be nested."""
        outermost = not self.db.in_transaction
        if outermost:
            self.query("BEGIN")
        try:
            yield
        finally:
            if outermost and self.db.in_transaction:  # an error may have ended it
                self.query("COMMIT")

    def metric(self, run: int, name: str) -> dict[int, float]:
        """One metric of a run by round."""
        rows = self.rows("metric", run, "AND name = ? ORDER BY round", name)
        with self.reading(f"run {run}, metric {name!a}"):
            return {cells.whole(row, "round", 1): cells.real(row, "value") for row in rows}

    def last_round(self, run: int) -> int:
        """The last committed round; 0 before the first."""
        rows = self.query("SELECT COALESCE(MAX(round), 0) AS round FROM round WHERE run = ?", run)
        with self.reading(f"run {run}"):
            return cells.whole(rows[0], "round")

    def rows(self, table: str, run: int, tail: str = "", *values: object) -> list[sqlite3.Row]:
        """The rows of a run in a table; ``tail`` is the rest of the query."""
        return self.query(f"SELECT * FROM {table} WHERE run = ? {tail}", run, *values)

    def query(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """The rows of a query that ends, and that returns no more than the file can hold."""
        self._allow(LIMIT)
        rows: list[sqlite3.Row] = []
        held = 0
        try:
            cursor = self.db.execute(sql, values)
            while batch := cursor.fetchmany(BATCH):
                rows += batch
                held += sum(len(cell) if isinstance(cell, str | bytes) else 1 for row in batch for cell in row)
                if len(rows) > BATCH and held > self._room():
                    raise self._damaged("a table holds more than the file")
        except ERRORS as error:
            raise failed(f"cannot read the ledger {self.path}", error, LIMIT) from error
        return rows

    def _room(self) -> int:
        """No sound query returns more bytes than are stored; pages of a damaged file may lead in a circle."""
        return SPARE + sum(path.stat().st_size for path in (self.path, log_of(self.path)) if path.is_file())

    def _allow(self, seconds: float) -> None:
        """Whatever SQLite does next has this long."""
        self.deadline = time.monotonic() + seconds

    def _damaged(self, fault: str) -> LedgerError:
        return LedgerError(f"the ledger {self.path} is damaged: {fault}", fault, doctor=True)

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """What is damaged in there is an error that says where."""
        try:
            yield
        except Damaged as error:
            raise self._damaged(f"{where}: {error}") from error

    @contextmanager
    def _opening(self) -> Iterator[None]:
        try:
            yield
        except ERRORS as error:
            raise failed(f"cannot open the ledger {self.path}", error, LIMIT) from error

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, whatever goes wrong inside."""
        self._allow(LIMIT)
        try:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                yield
            except BaseException:
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                raise
            self.db.execute("COMMIT")
        except ERRORS as error:
            if self.db.in_transaction:
                self.db.execute("ROLLBACK")
            raise failed(f"cannot write to the ledger {self.path}", error, LIMIT) from error

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
        with self.transaction():
            version = self.db.execute("PRAGMA user_version").fetchone()[0]  # another process may have been first
            self._check(version)
            if not version and self.db.execute("SELECT 1 FROM sqlite_master").fetchall():
                raise LedgerError(f"{self.path} is a database, but no ledger; start in another folder (FEDWARDEN_HOME)")
            for migration in MIGRATIONS[max(version - BEFORE, 0) :]:
                for statement in migration:
                    self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version = {SCHEMA}")

    def _check_schema(self) -> None:
        """Refuse what is not a ledger of ours, up to date and with the tables that we made."""
        version = self.db.execute("PRAGMA user_version").fetchone()[0]
        self._check(version)
        if version < SCHEMA:
            raise OldLedger(
                f"the ledger {self.path} has schema {version} and not {SCHEMA}; `fedwarden runs` brings it up to date"
            )
        if other := strangers(self.db, STATEMENTS):
            raise self._damaged(f"fedwarden did not make its {', '.join(other)}")

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
