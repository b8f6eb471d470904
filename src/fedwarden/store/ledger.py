"""The ledger: one SQLite file per workspace that holds every run, round and verdict.

It is written in WAL mode, one transaction per round, so it can be read while a run writes and loses no committed round
to a crash. A round reads back one thing, the operator's word, as it begins. What a round has by client is one packed
column, and every table is looked up by run and round, so that a round costs the same however long a run is.

Reading never writes: a ledger of an earlier schema is read through the queries of :mod:`fedwarden.store.earlier`, and
brought up to date when somebody opens it to write.

A ledger may be damaged or made by a stranger: whatever cannot be read as what was written is a :class:`LedgerError`
that names the run, the round and the column, and no query runs for ever.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import numpy as np

from ..core.types import Observation, RoundRecord
from . import cells, earlier
from .claim import is_abandoned
from .connection import ERRORS, allow, failed, journal, logs_of, open_reader, open_writer, strangers
from .connection import LedgerError as LedgerError
from .parse import LARGEST, SMALLEST, clients_in, read_observation, read_record, read_run, round_rows
from .parse import Run as Run
from .schema import OLDEST, ROUND_TABLES, SCHEMA, STATEMENTS, TABLES

PATIENCE = 30.0  # seconds to wait for another process that writes
LIMIT = 60.0  # seconds of computing after which a query is given up; sound ledgers answer in a second
STEPS = 100_000  # of SQLite's machine between two looks at the clock, some milliseconds
BATCH = 500  # rows
PIECE = 200  # rounds that are read at once
AT = "AND round >= ? ORDER BY round LIMIT 1 OFFSET ?"
PACKED = 5  # of an earlier schema a number in digits may be shorter than a packed one
TEXTS = (str, bytes)
SPARE = 1 << 20  # bytes that a query may return beyond the size of the file


def home() -> Path:
    """The workspace: FEDWARDEN_HOME, else ./fedwarden-runs."""
    return Path(os.environ.get("FEDWARDEN_HOME") or "fedwarden-runs")


Rows = dict[int, list[sqlite3.Row]]


class Ledger:
    """Reads and appends; use it as a context or close it."""

    def __init__(
        self, folder: Path | None = None, create: bool = True, read_only: bool = False, patience: float = PATIENCE
    ) -> None:
        """``read_only`` writes nothing, not even a newer schema; no run is in its way. ``patience`` is in seconds."""
        self.folder = folder or home()
        self.path = self.folder / "ledger.sqlite"
        self.copied: TemporaryDirectory[str] | None = None
        self.known: earlier.Names = {}
        self.writes = not read_only
        if (read_only or not create) and not self.path.is_file():
            raise LedgerError(f"no ledger in {self.folder}; run something first, or set FEDWARDEN_HOME to its folder")
        allow(self.path, self.writes)
        with self._opening():
            if read_only:
                self.db, self.copied = open_reader(self.path, patience)
            else:
                if self.path.is_file():
                    earlier.migrate(self.path)
                self.db = open_writer(self.path, patience)
        self._allow(LIMIT)
        self.db.set_progress_handler(lambda: time.monotonic() > self.deadline, STEPS)
        try:
            with self._opening():
                if not read_only:
                    journal(self.db, self.path, "WAL", PATIENCE)
                    self.db.execute("PRAGMA synchronous = FULL")
                    self._create()
                self.sources = self._sources()
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

    def append(self, run: int, record: RoundRecord, finished: float | None = None) -> None:
        """Commit one round; a round that is there already, as after a resume, is replaced by the same numbers."""
        key, now = (run, record.round), time.time() if finished is None else finished
        with self.transaction():
            for table in ROUND_TABLES:
                self.db.execute(f"DELETE FROM {table} WHERE run = ? AND round = ?", key)
            numbers = self._numbers(run, clients_in(record))
            for table, rows in round_rows(run, record, numbers, now).items():
                if rows:
                    self.db.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)

    def _numbers(self, run: int, clients: Sequence[str]) -> dict[str, int]:
        """The numbers of clients; those that are new to a run get the next ones."""
        found = self.db.execute(
            "SELECT name, number FROM client WHERE run = ? AND name IN (SELECT value FROM json_each(?))",
            (run, json.dumps(clients)),
        )
        numbers: dict[str, int] = dict(found)
        (last,) = self.db.execute("SELECT COALESCE(MAX(number), 0) FROM client WHERE run = ?", (run,)).fetchone()
        new = {client: last + i for i, client in enumerate((c for c in clients if c not in numbers), 1)}
        self.db.executemany("INSERT INTO client (name, number, run) VALUES (?, ?, ?)", [(*n, run) for n in new.items()])
        return numbers | new

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
        """The participants whose observations a run has."""
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

    def records(self, run: int) -> list[RoundRecord]:
        """The rounds of a run in order, as they were recorded."""
        with self.snapshot():
            return list(self.stream(run))

    def record(self, run: int, round: int) -> RoundRecord:
        """One round as it was recorded."""
        with self.snapshot():
            found = self.piece(run, round, round)
        if not found:
            raise LedgerError(f"run {run} has no round {round}; its last is {self.last_round(run)}")
        return found[0]

    def stream(self, run: int, after: int = 0) -> Iterator[RoundRecord]:
        """The same one by one, those after some round; no more than some are held at a time."""
        first = after + 1 if after else SMALLEST  # what is below 1 is damage
        names: dict[object, tuple[str, ...]] = {}
        while True:
            with self.snapshot():
                ends = [] if self.old else self.rows("round", run, AT, first, PIECE - 1, of="round")
                last = ends[0]["round"] if ends and isinstance(ends[0]["round"], int) else LARGEST
                found = self.piece(run, first, last, names)
                if last == LARGEST and not self.has(run):
                    raise LedgerError(f"run {run} was removed while it was read")
            yield from found
            if last == LARGEST:
                return
            first = last + 1

    def has(self, run: int) -> bool:
        """Whether there is such a run."""
        return bool(self.query("SELECT 1 FROM run WHERE id = ?", run))

    def piece(
        self, run: int, first: int, last: int, names: dict[object, tuple[str, ...]] | None = None
    ) -> list[RoundRecord]:
        """The rounds from one to another, both included; ``names`` keeps the clients of rounds that were read."""

        def by_round(table: str, order: str) -> Rows:
            found: Rows = {}
            rows = self.rows(table, run, f"AND round BETWEEN ? AND ? ORDER BY round{order}", first, last)
            with self.reading(f"run {run}, table {table}"):
                for row in rows:
                    found.setdefault(cells.whole(row, "round", 1), []).append(row)
            return found

        rest = {
            "remark": by_round("remark", ", position"),
            "watch": by_round("watch", ", position"),
            "report": by_round("report", ""),
        }
        heads = by_round("round", "")
        for table, rows in rest.items():
            if lost := rows.keys() - heads.keys():
                raise self.damaged(f"run {run}: table {table} has round {min(lost)}, which is not there")
        kept = {} if names is None else names
        records = []

        def named(column: str, packed: object) -> tuple[str, ...]:
            if packed not in kept:  # most rounds have the clients of the one before
                kept[packed] = self.clients(run, column, packed)
            return kept[packed]

        for t, (head, *_) in heads.items():
            with self.reading(f"run {run}, round {t}"):
                records.append(read_record(head, named, *(rows.get(t, ()) for rows in rest.values())))
        return records

    def clients(self, run: int, column: str, packed: object) -> tuple[str, ...]:
        """The names of the clients of a packed column."""
        numbers, known = cells.integers(column, packed).tolist(), self.known.setdefault(run, {})
        if missing := [number for number in numbers if number not in known]:
            for row in self.rows("client", run, "AND number IN (SELECT value FROM json_each(?))", json.dumps(missing)):
                known[cells.whole(row, "number")] = cells.text(row, "name")
        if lost := [number for number in numbers if number not in known]:
            raise cells.Damaged(column, f"clients of run {run}", lost)
        return tuple(known[number] for number in numbers)

    def watches(self, run: int) -> tuple[str, ...]:
        """The names of a run's watches, in their order."""
        rows = self.rows("watch", run, "GROUP BY watch ORDER BY position", of="watch, position, MIN(round)")
        with self.reading(f"run {run}, table watch"):
            return tuple(cells.text(row, "watch") for row in rows)

    def reported(self, run: int) -> Counter[str]:
        """What clients of a run reported, with how many numbers, in the order in which it appeared."""
        size = "name, SUM(length(content)) / 8 AS numbers"
        rows = self.rows("report", run, "GROUP BY name ORDER BY MIN(round), name", of=size)
        with self.reading(f"run {run}, table report"):
            return Counter({cells.text(row, "name"): int(cells.real(row, "numbers")) for row in rows})

    def loudest(self, run: int) -> str | None:
        """The watch that flagged most clients so far, of equals the first; None where nothing watched."""
        found: dict[str, set[str]] = {name: set() for name in self.watches(run)}
        rows = self.query(
            f"""SELECT DISTINCT watch, watch.flagged AS flagged, clients FROM {self.sources["watch"]} AS watch
            JOIN {self.sources["round"]} AS round USING (run, round) WHERE run = ? AND length(watch.flagged) > 0""",
            run,
        )
        with self.reading(f"run {run}, table watch"):
            for row in rows:
                clients = self.clients(run, "clients", row["clients"])
                flags = np.flatnonzero(cells.mask(row, "flagged", len(clients)))
                found[row["watch"]].update(clients[i] for i in flags.tolist())
        return max(found, key=lambda name: len(found[name]), default=None)

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

    def last_round(self, run: int) -> int:
        """The last committed round; 0 before the first."""
        rows = self.query("SELECT COALESCE(MAX(round), 0) AS round FROM round WHERE run = ?", run)
        with self.reading(f"run {run}"):
            return cells.whole(rows[0], "round")

    def rows(self, table: str, run: int, tail: str = "", *values: object, of: str = "*") -> list[sqlite3.Row]:
        """The rows of a run in a table; ``tail`` is the rest of the query, ``of`` the columns."""
        return self.query(f"SELECT {of} FROM {self.sources[table]} AS {table} WHERE run = ? {tail}", run, *values)

    def query(self, sql: str, *values: object) -> list[sqlite3.Row]:
        """The rows of a query that ends, and that returns no more than the file can hold."""
        self._allow(LIMIT)
        rows: list[sqlite3.Row] = []
        held = 0
        try:
            cursor = self.db.execute(sql, values)
            while batch := cursor.fetchmany(BATCH):
                rows += batch
                if len(rows) > BATCH:
                    held += sum(len(cell) if isinstance(cell, TEXTS) else 1 for row in batch for cell in row)
                if held > self._room():
                    raise self.damaged("a table holds more than the file")
        except ERRORS as error:
            raise failed(f"cannot read the ledger {self.path}", error, LIMIT) from error
        return rows

    def _room(self) -> int:
        """No sound query returns more bytes than are stored; pages of a damaged file may lead in a circle."""
        size = sum(path.stat().st_size for path in (self.path, *logs_of(self.path)) if path.is_file())
        return SPARE + size * (PACKED if self.old else 1)

    def _allow(self, seconds: float) -> None:
        """Whatever SQLite does next has this long."""
        self.deadline = time.monotonic() + seconds

    def damaged(self, fault: str) -> LedgerError:
        return LedgerError(f"the ledger {self.path} is damaged: {fault}", fault, doctor=True)

    @contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """What is damaged in there is an error that says where."""
        try:
            yield
        except cells.Damaged as error:
            raise self.damaged(f"{where}: {error}") from error

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
            self.db.execute("BEGIN IMMEDIATE")
            yield
            self.db.execute("COMMIT")
        except BaseException as error:
            with suppress(*ERRORS):  # a full disk may refuse that too
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
            if isinstance(error, ERRORS):
                raise failed(f"cannot write to the ledger {self.path}", error, LIMIT) from error
            raise

    def _create(self) -> None:
        """Make the tables where there are none."""
        if self.version:
            return
        with self.transaction():
            if self.version:  # another process was first
                return
            if self.db.execute("SELECT 1 FROM sqlite_master").fetchall():
                raise LedgerError(f"{self.path} is a database, but no ledger; start in another folder (FEDWARDEN_HOME)")
            for statement in STATEMENTS:
                self.db.execute(statement)
            self.db.execute(f"PRAGMA user_version = {SCHEMA}")

    @property
    def version(self) -> int:
        """The schema of the file; 0 is an empty one."""
        return int(self.db.execute("PRAGMA user_version").fetchone()[0])

    @cached_property
    def old(self) -> bool:
        """Whether it has an earlier schema, which is read and not written."""
        return OLDEST <= self.version < SCHEMA

    def strangers(self) -> list[str]:
        """What in the file we did not make."""
        return strangers(self.db, earlier.tables_of(self.version) if self.old else STATEMENTS)

    def _sources(self) -> dict[str, str]:
        """What has the rows of each table: a table, or a query of an earlier schema."""
        version = self.version
        if version > SCHEMA:
            raise LedgerError(
                f"the ledger {self.path} has schema {version}; this version of fedwarden knows up to {SCHEMA}: "
                "use a newer one"
            )
        if 0 < version < OLDEST:
            raise LedgerError(
                f"the ledger {self.path} was written before the first release (schema {version}); "
                "keep it with that version, and start in another folder (FEDWARDEN_HOME)"
            )
        if not version and not self.db.execute("SELECT 1 FROM sqlite_master").fetchall():
            raise LedgerError(f"the ledger {self.path} is empty; run something first, or set FEDWARDEN_HOME")
        if other := self.strangers():
            raise self.damaged(f"fedwarden did not make its {', '.join(other)}")
        if not version:
            raise self.damaged(f"it says schema 0, and has the tables of schema {SCHEMA}")
        return self._tables()

    def _tables(self) -> dict[str, str]:
        if not self.old:
            return {table: table for table in TABLES}
        earlier.teach(self.db, self.known)
        return earlier.tables(self.version)
