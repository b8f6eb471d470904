"""What is wrong with a workspace, and how what can be read of its ledger is saved into a new one.

Nothing is ever deleted: a ledger that is repaired stays beside the new one as ``ledger.sqlite.damaged-N``.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import __version__
from ..core.types import Observation, RoundRecord
from ..core.words import count
from . import cells, outbox
from .checkpoint import DRAFT, CheckpointError, load
from .claim import is_abandoned
from .connection import ERRORS, copy, journal, logs_of, made_by, strangers
from .earlier import beside
from .ledger import Ledger, LedgerError
from .parse import Run, read_run
from .record import RunRecord
from .schema import OLDEST, ROUND_TABLES, SCHEMA, STATEMENTS, TABLES
from .story import Story
from .word import Said, said_in

MOST = 20  # faults that SQLite lists
PATIENCE = 600.0  # seconds that one look at a damaged ledger may take
HEADER = 24  # bytes with which every ledger begins: magic, size of pages, versions of the format
LOST = "repaired"  # the engine of a run whose own row was lost


@dataclass(frozen=True)
class Finding:
    """Something to know about a workspace; a note is no fault."""

    kind: str
    words: str
    run: int | None = None
    round: int | None = None
    fault: bool = True


@dataclass(frozen=True, eq=False)
class Saved:
    """What can be read of one run: its own row, if that is among it, its rounds, what auditors saw, what was said."""

    id: int
    head: Run | None
    records: tuple[RoundRecord, ...]
    observations: dict[str, tuple[Observation, ...]]
    said: tuple[Said, ...] = ()

    @property
    def record(self) -> RunRecord:
        head = self.head or _stand_in(self.id, len(self.records))
        story = Story.of(self.records)
        return RunRecord(head, story, self.observations, self.said, tuple(story.series.reported))


class Patient(Ledger):
    """A ledger that is read as far as possible: some of its tables may not be ours, and it is given time."""

    def _sources(self) -> dict[str, str]:
        if self.strangers() and not OLDEST <= self.version <= SCHEMA:
            return super()._sources()
        return self._tables()

    @cached_property
    def old(self) -> bool:
        return OLDEST <= self.version < SCHEMA and bool(strangers(self.db, STATEMENTS))

    def _allow(self, seconds: float) -> None:
        super()._allow(PATIENCE)

    def keys(self, sql: str, *values: object) -> set[int]:
        """Whole numbers that a query gives, read from both ends, since a damaged page ends it early."""
        found: set[int] = set()
        for order in ("ASC", "DESC"):
            with suppress(*ERRORS):
                cursor = self.db.execute(f"{sql} {order}", values)
                found.update(row[0] for row in islice(cursor, self._room()) if isinstance(row[0], int))
        return found

    def head(self, run: int) -> Run:
        """A run's own row, without a look at its rounds."""
        (row,) = self.query("SELECT *, 0 AS rounds FROM run WHERE id = ?", run) or (None,)
        if row is None:
            raise LedgerError(f"run {run} cannot be found again")
        with self.reading(f"run {run}"):
            return read_run(row)

    def has(self, run: int) -> bool:
        return True  # its rounds are read even where its own row is lost

    def sound_tables(self) -> set[str]:
        """The tables that we made; a view in place of one may be endless."""
        other = self.strangers()
        return {t for t in TABLES if f"table {t}" not in other}


def examine(folder: Path) -> tuple[list[Finding], list[Saved]]:
    """Everything that is to be said of a workspace, and what can be read of its ledger."""
    with _opened(folder) as (ledger, fault):
        findings, saved = _ledger(ledger)
    if fault is not None:
        findings.insert(0, Finding("file", fault))
    runs = {s.id: s.head for s in saved}
    for run in (head for head in runs.values() if head is not None and head.state == "running"):
        after = count(run.rounds, "round")
        words = f"marked running after {after}; if no process is at it, fedwarden run --resume {run.id}"
        words = f"interrupted after {after}" if is_abandoned(folder, run.id, run.committed) else words
        findings.append(Finding("running", words, run.id, fault=False))
    return findings + list(_checkpoints(folder, runs)), saved


@contextmanager
def _opened(folder: Path) -> Iterator[tuple[Patient, str | None]]:
    """The ledger, or, where SQLite can make nothing of it, a copy with the beginning of a sound one."""
    try:
        ledger, fault = Patient(folder, read_only=True), None
    except LedgerError as error:
        path = folder / "ledger.sqlite"
        if not path.is_file():
            raise
        fault = error.fault
        with TemporaryDirectory(prefix="fedwarden-") as place:
            try:
                _mend(path, Path(place))
                ledger = Patient(Path(place), read_only=True)
            except (*ERRORS, LedgerError, OSError):
                raise error from None
            with ledger:
                yield ledger, fault
        return
    with ledger:
        yield ledger, fault


def _mend(path: Path, place: Path) -> None:
    """A copy with the file header and the statements of the tables that every ledger has."""
    with Ledger(place / "sound") as sound:
        made = sound.path
    copied = place / path.name
    copy(path, copied)
    with open(copied, "r+b") as file:
        file.write(made.read_bytes()[:HEADER])
    with closing(sqlite3.connect(copied, isolation_level=None)) as db:
        db.execute("PRAGMA writable_schema = ON")  # also lets SQLite pass over statements that it cannot read
        for name, (kind, sql) in made_by(STATEMENTS).items():
            db.execute("UPDATE sqlite_master SET type = ?, sql = ? WHERE name = ?", (kind, sql, name))
        db.execute(f"PRAGMA user_version = {SCHEMA}")


def _ledger(ledger: Patient) -> tuple[list[Finding], list[Saved]]:
    findings: list[Finding] = []
    try:
        rows = ledger.db.execute(f"PRAGMA integrity_check({MOST})").fetchall()
        findings += [Finding("file", f"{row[0]!a}"[1:-1]) for row in rows if row[0] != "ok"]
    except ERRORS as error:
        findings.append(Finding("file", f"{str(error)!a}"[1:-1]))
    tables = ledger.sound_tables()
    findings += [Finding("schema", f"fedwarden did not make its {name}") for name in ledger.strangers()]
    if ledger.version != SCHEMA and not ledger.old:
        findings.append(Finding("schema", f"it says schema {ledger.version}, and has the tables of schema {SCHEMA}"))
    if not tables.issuperset(ROUND_TABLES) and "run" not in tables:
        return findings, []
    known = ledger.keys("SELECT id FROM run ORDER BY id") if "run" in tables else set()
    orphans = (ledger.keys("SELECT DISTINCT run FROM round ORDER BY run") if "round" in tables else set()) - known
    saved = []
    findings += [Finding("run", f"there is a run {run}", run) for run in sorted(known | orphans) if run < 1]
    for run in sorted(run for run in known | orphans if run > 0):
        new, found = _run(ledger, run, tables, run in known)
        findings += new
        saved.append(found)
    return findings, saved


def _run(ledger: Patient, run: int, tables: set[str], known: bool) -> tuple[list[Finding], Saved]:
    findings: list[Finding] = []

    @contextmanager
    def noting(kind: str, round: int | None = None) -> Iterator[None]:
        try:
            yield
        except LedgerError as error:
            findings.append(Finding(kind, error.fault, run, round))

    head: Run | None = None
    if known:
        with noting("run"):
            head = ledger.head(run)
    else:
        findings.append(Finding("run", f"run {run} has rounds, but its own row is lost", run))
    records: list[RoundRecord] = []
    if tables.issuperset(ROUND_TABLES):
        rounds = ledger.keys("SELECT round FROM round WHERE run = ? ORDER BY round", run)
        planned = head.config.get("rounds") if head else None
        probed = range(1, min(planned, 100_000) + 1) if isinstance(planned, int) else ()
        try:
            records = ledger.records(run)
        except LedgerError as error:
            before = len(findings)
            for t in sorted({t for t in rounds if t > 0}.union(probed)):
                with noting("round", t):
                    records += _one(ledger, run, t, t in rounds)
            if len(findings) == before:  # not in a round, but beside them
                with noting("round"):
                    raise error
    seen: dict[str, tuple[Observation, ...]] = {}
    if "audit" in tables:
        with noting("audit"):
            for who in ledger.observers(run):
                with noting("audit"):
                    seen[who] = tuple(ledger.observations(run, who))
    said: tuple[Said, ...] = ()
    if "word" in tables:
        with noting("word"):
            said = tuple(said_in(ledger, run))
    if "outbox" in tables:
        with noting("outbox"):
            outbox.messages(ledger, run, pending=False)
    return findings, Saved(run, head and replace(head, rounds=len(records)), tuple(records), seen, said)


def _one(ledger: Patient, run: int, t: int, known: bool) -> list[RoundRecord]:
    """A round by its number; one that only might be there is no fault where it is not."""
    found = ledger.piece(run, t, t)
    if known and not found:
        raise LedgerError(f"run {run}, round {t} cannot be found again")
    return found


def _checkpoints(folder: Path, runs: Mapping[int, Run | None]) -> Iterable[Finding]:
    for place in sorted((folder / "checkpoints").glob("*")):
        run = int(place.name) if place.name.isdecimal() and len(place.name) < 19 else None
        if run not in runs:
            yield Finding("checkpoint", f"{place} belongs to no run that can be read", fault=False)
        head = runs.get(run or 0)
        for path in sorted(place.glob("*.safetensors")):
            try:
                load(path, head.identity if head else None)
            except CheckpointError as error:
                by = head.versions.get("fedwarden", __version__) if head else __version__
                hint = "--resume uses the one before" if by == __version__ else f"fedwarden {by} recorded the run"
                yield Finding("checkpoint", f"{error}; {hint}", run, fault=by == __version__)
        for path in sorted(place.glob(DRAFT)):
            yield Finding("draft", f"{path} was left by a process that was killed; it may be removed", run, fault=False)


def repair(folder: Path, saved: Sequence[Saved]) -> Path:
    """Write what was saved to a new ledger in the place of the damaged one; where the damaged one is now."""
    path = folder / "ledger.sqlite"
    aside = beside(path, "damaged")
    with TemporaryDirectory(prefix="repair-", dir=folder) as draft:
        copy(path, aside)
        try:
            with suppress(*ERRORS), closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as db:
                journal(db, path, "DELETE", 0.0)  # others would go on writing to the file that is put aside
        except LedgerError:
            for made in (aside, *logs_of(aside)):
                made.unlink(missing_ok=True)
            raise
        with _opened(folder) as (damaged, _), Ledger(Path(draft)) as new:
            for found in saved:
                _copy_run(damaged, new, found)
        for log in logs_of(path):
            log.unlink(missing_ok=True)  # copied with the damaged file; SQLite would apply it to the new one
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        os.replace(Path(draft) / path.name, path)
    return aside


def _copy_run(damaged: Patient, new: Ledger, found: Saved) -> None:
    """Write a run, what auditors saw row by row where it is found again."""

    def put(table: str, rows: Iterable[Sequence[object]]) -> None:
        for row in rows:
            new.db.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", tuple(row))

    head = found.head or _stand_in(found.id, len(found.records))
    told = tuple(json.dumps(table) for table in (head.config, head.versions, head.summary))
    with new.transaction():
        put("run", [(head.id, head.name, head.created, head.state, head.engine, *told)])
    for record in found.records:
        again = _again(damaged, "round", found.id, "AND round = ?", record.round)
        new.append(found.id, record, again[0]["finished"] if again else None)
    for who, seen in found.observations.items():
        rows = [_again(damaged, "audit", found.id, "AND observer = ?", who)]
        if len(rows[0]) != len(seen):
            new.observe(found.id, seen, who)
            continue
        with new.transaction():
            put("audit", rows[0])
    with new.transaction():
        put("word", [(found.id, s.number, s.kind, s.client, s.by, s.reason, s.said_at, s.round) for s in found.said])
        for row in _again(damaged, "outbox", found.id, "AND number >= ?", 0):
            with suppress(cells.Damaged):
                outbox.read(row)
                put("outbox", [row])


def _again(damaged: Patient, table: str, run: int, tail: str, value: object) -> list[sqlite3.Row]:
    """Rows that were read before; none where a damaged page hides them from this way of asking."""
    with suppress(LedgerError):
        return damaged.rows(table, run, tail, value)
    return []


def _stand_in(run: int, rounds: int) -> Run:
    """For a run whose own row is lost: nothing is claimed of how it was made."""
    return Run(run, f"run {run}, repaired", 0.0, "failed", LOST, {}, {}, {}, rounds)
