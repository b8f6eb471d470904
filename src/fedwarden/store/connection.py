"""How the ledger's file is opened: with no more rights than needed, and without trusting what is in it.

A reader needs to read and nothing else: SQLite's own read-only mode wants to write beside a file in WAL mode, so where
that is not allowed the file is read as one that nobody changes or, with a log that is still to be applied, from a copy.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from collections.abc import Sequence
from functools import cache
from getpass import getuser
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from ..core.errors import FedwardenError
from .cells import decode

ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the second: SQLite's message quotes the file, and the file is not UTF-8
TRIES = 5  # to copy a ledger that is being written to
ALONE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
NO_RIGHTS = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
CAREFUL = ("trusted_schema = OFF", "cell_size_check = ON")
DOCTOR = "try: fedwarden doctor"
OUTSIDE = (
    sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_FULL, sqlite3.SQLITE_CONSTRAINT,
)  # fmt: skip


class LedgerError(FedwardenError):
    """A ledger that cannot be read or written.

    ``words`` say so, ``fault`` what is wrong without which ledger it is; ``doctor`` may help.
    """

    def __init__(self, words: str, fault: str = "", doctor: bool = False) -> None:
        super().__init__(f"{words}; {DOCTOR}" if doctor else words)
        self.words, self.fault, self.doctor = words, fault or words, doctor


def user() -> str:
    """The user of this system; its number where it has no name."""
    try:
        return getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def allow(path: Path, writes: bool) -> None:
    """Refuse a ledger, or a folder that has none yet, to which this user has not the rights."""
    folder = path.parent
    fault, needs = "", [(folder, os.W_OK | os.X_OK, "write in"), (path, os.W_OK, "write to")] if writes else []
    try:
        if writes:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fault = f"the folder {folder} cannot be made ({error.strerror})"
    for part, right, verb in [*needs, (path, os.R_OK, "read")]:
        if not fault and part.exists() and not os.access(part, right):
            fault = f"user {user()} may not {verb} {part}"
    if fault:
        raise LedgerError(f"{fault}; use its owner's account, or another workspace (--home, FEDWARDEN_HOME)")


def failed(what: str, error: Exception, limit: float) -> LedgerError:
    """SQLite's reason, which may quote the file, and so anything; and the doctor, unless the file is not at fault."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    late = f"it took longer than {limit:g} s, which no sound ledger does"
    reason = late if code == sqlite3.SQLITE_INTERRUPT else ascii(str(error))[1:-1]
    reason += ": another process writes to it; end it or wait, then try again" if code in ALONE else ""
    return LedgerError(f"{what}: {reason}", doctor=code not in OUTSIDE)


def open_writer(path: Path, patience: float) -> sqlite3.Connection:
    return prepare(sqlite3.connect(path, timeout=patience, isolation_level=None), CAREFUL)


def open_reader(path: Path, patience: float) -> tuple[sqlite3.Connection, TemporaryDirectory[str] | None]:
    """A connection that cannot write, and the folder of its copy if it needs one, to be removed after it."""
    try:
        return _read(path, "mode=ro", patience), None
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in NO_RIGHTS:
            raise
    if not any(stamp(log)[0] for log in logs_of(path)):
        return _read(path, "immutable=1", patience), None
    copied = TemporaryDirectory(prefix="fedwarden-")
    try:
        copy(path, Path(copied.name) / path.name)
        return _read(Path(copied.name) / path.name, "mode=rw", patience), copied
    except BaseException:
        copied.cleanup()
        raise


def journal(db: sqlite3.Connection, path: Path, mode: str, patience: float) -> None:
    """Enter WAL mode, or leave it, which only the last connection may do; SQLite itself does not wait for others."""
    until = time.monotonic() + patience
    while True:
        try:
            db.execute(f"PRAGMA journal_mode = {mode}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in ALONE:
                raise
            if time.monotonic() > until:
                raise LedgerError(f"another process has the ledger {path} open; end it, then try again") from error
            time.sleep(0.02)


def copy(path: Path, target: Path) -> None:
    """The file and its logs, all of one moment."""
    both = ((path, target), *zip(logs_of(path), logs_of(target), strict=True))
    for _ in range(TRIES):
        before = [stamp(source) for source, _ in both]
        for source, goal in both:
            if stamp(source)[0]:  # readers make empty logs
                shutil.copyfile(source, goal)
        if before == [stamp(source) for source, _ in both]:
            return
    raise sqlite3.OperationalError("it is written to, and what is beside it cannot be read; try again later")


def logs_of(path: Path) -> tuple[Path, Path]:
    """What SQLite keeps beside a file: the log of WAL mode, and the journal that takes back what was not committed."""
    return path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-journal")


def prepare(db: sqlite3.Connection, pragmas: Sequence[str]) -> sqlite3.Connection:
    db.row_factory = sqlite3.Row
    db.text_factory = decode
    try:
        for pragma in pragmas:
            db.execute(f"PRAGMA {pragma}").fetchall()
        return db
    except BaseException:
        db.close()
        raise


def strangers(db: sqlite3.Connection, ours: Sequence[str]) -> list[str]:
    """What in the file differs from what these statements make: another table of ours, or any trigger.

    A view in place of a table can be endless, and a trigger writes what nobody asked for. What somebody has added
    beside our tables is never read. Of an earlier schema names are given: each has to be a table.
    """
    found = _objects(db)
    if any(" " in statement for statement in ours):
        other = [
            f"{kind} {name}" for name, (kind, sql) in made_by(tuple(ours)).items() if found.get(name) != (kind, sql)
        ]
    else:
        other = [f"table {name}" for name in ours if not found.get(name, ("", ""))[1].startswith("CREATE TABLE ")]
    return other + [f"trigger {name!a}" for name, (kind, _) in found.items() if kind == "trigger"]


@cache
def made_by(statements: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Type and statement of what these statements make, by name."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        for statement in statements:
            db.execute(statement)
        return _objects(db)
    finally:
        db.close()


def _objects(db: sqlite3.Connection) -> dict[str, tuple[str, str]]:
    """Type and statement of what is in a file, by name; without what SQLite makes by itself."""
    rows = db.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall()
    return {str(name): (str(kind), " ".join(str(sql).split())) for kind, name, sql in rows}


def _read(path: Path, mode: str, patience: float) -> sqlite3.Connection:
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    db = sqlite3.connect(address, timeout=patience, isolation_level=None, uri=True)
    return prepare(db, ("query_only = ON", *CAREFUL, "schema_version"))  # the last shows whether it can be read


def stamp(path: Path) -> tuple[int, int]:
    """The size of a file and when it changed; zeros where there is none."""
    return (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else (0, 0)
