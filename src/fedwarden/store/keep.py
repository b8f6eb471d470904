"""The life of a workspace: how large its runs are, which of them go, and a copy of it all in one file."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tarfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from .. import store
from . import outbox
from .claim import claim, is_claimed
from .connection import ERRORS, LedgerError, failed
from .ledger import Ledger, Run
from .schema import TABLES

PART = re.compile(r"ledger\.sqlite|checkpoints/[0-9]{1,18}/round-[0-9]{1,18}\.(safetensors|rows)")
TRIES = 10  # to copy the checkpoints of a run that replaces them


def sizes(ledger: Ledger, run: int) -> tuple[int, int]:
    """Bytes of a run: about as many as it takes in the ledger, and those of its checkpoints."""
    held = 0
    for table in _tables(ledger):
        columns = [row["name"] for row in ledger.query(f"PRAGMA table_info({table})")]
        each = " + ".join(f"COALESCE(LENGTH({column}), 0)" for column in columns)
        held += ledger.query(f"SELECT COALESCE(SUM({each}), 0) AS held FROM {table} WHERE run = ?", run)[0]["held"]
    kept = 0
    for path in _checkpoints(ledger.folder, run):
        with suppress(FileNotFoundError):  # the run has removed it meanwhile
            kept += path.stat().st_size
    return held, kept


def superfluous(ledger: Ledger, keep: int, unfinished: bool = False) -> list[Run]:
    """All but the newest runs, and none that is written, here or elsewhere.

    Those that are not done, or whose messages are pending, go only where ``unfinished`` ones may. The newest always
    stays, so that no number is given twice.
    """
    pending = {message.run for message in outbox.messages(ledger)}
    old = [run for run in ledger.runs()[keep:] if unfinished or (run.state == "done" and run.id not in pending)]
    return [run for run in old if run.state != "running" and not is_claimed(ledger.folder, run.id)]


def remove(ledger: Ledger, run: int) -> None:
    """Remove a run that nobody writes, with its checkpoints."""
    with claim(ledger.folder, run):
        with ledger.transaction():
            for table in _tables(ledger):
                ledger.db.execute(f"DELETE FROM {table} WHERE run = ?", (run,))
            ledger.db.execute("DELETE FROM run WHERE id = ?", (run,))
        shutil.rmtree(ledger.folder / "checkpoints" / str(run), ignore_errors=True)


def shrink(ledger: Ledger) -> None:
    """Give back the room of what was removed; where a run is written, its next rounds take it."""
    if not any(is_claimed(ledger.folder, run.id) for run in ledger.runs()):
        with suppress(*ERRORS), closing(sqlite3.connect(ledger.path, isolation_level=None)) as db:
            db.execute("VACUUM")


def backup(ledger: Ledger, file: Path) -> None:
    """The ledger as of one moment and the checkpoints, as a tar file, which is there whole or not at all.

    Checkpoints are taken first, so that the ledger has their rounds.
    """
    with TemporaryDirectory(prefix=".backup-", dir=file.absolute().parent) as place:
        draft, copy = Path(place) / "draft", Path(place) / "ledger.sqlite"
        with tarfile.open(draft, "w") as made:
            for run in ledger.runs():
                _add(made, ledger.folder, run.id)
            try:
                with closing(sqlite3.connect(copy)) as db:
                    ledger.db.backup(db)
                    db.execute("PRAGMA journal_mode = DELETE")
            except ERRORS as error:
                raise failed(f"cannot copy the ledger {ledger.path}", error, 0.0) from error
            made.add(copy, copy.name)
        with open(draft, "rb") as written:
            os.fsync(written.fileno())
        os.replace(draft, file)


def restore(file: Path, folder: Path) -> None:
    """Put a backup into a workspace that has no runs; nothing is there until all of it is."""
    if taken := [path for name in ("ledger.sqlite", "checkpoints") if (path := folder / name).exists()]:
        raise LedgerError(f"{taken[0]} is there already; give an empty folder with --home, or move it away")
    there = next(place for place in (folder, *folder.absolute().parents) if place.is_dir())
    with _reading(file) as made, TemporaryDirectory(prefix=".restore-", dir=there) as place:
        for part in made:
            source, target = made.extractfile(part) if part.isfile() else None, Path(place) / part.name
            if source is None or part.issparse() or not PART.fullmatch(part.name):
                raise LedgerError(f"{file} is no backup of a workspace: it has {part.name!a}")
            target.parent.mkdir(parents=True, exist_ok=True)
            with source, open(target, "wb") as written:
                shutil.copyfileobj(source, written)
        if not (Path(place) / "ledger.sqlite").is_file():
            raise LedgerError(f"{file} is no backup of a workspace: it has no ledger")
        try:
            Ledger(Path(place), read_only=True).close()
        except LedgerError as error:
            raise LedgerError(f"the ledger in {file} cannot be used here: {error.fault}") from error
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("checkpoints", "ledger.sqlite"):  # a workspace without its ledger has no runs
            with suppress(FileNotFoundError):
                os.replace(Path(place) / name, folder / name)


def _tables(ledger: Ledger) -> list[str]:
    """Our tables that have rows by run, of those that this ledger has."""
    there = {row["name"] for row in ledger.query("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return [name for name in TABLES if name in there and name != "run"]


def _checkpoints(folder: Path, run: int) -> list[Path]:
    """The checkpoints of a run, and then the rows that they share, which only grow; nothing else that lies there."""
    found = [path for kind in ("safetensors", "rows") for path in store.checkpoint.saved(folder, run, kind).values()]
    return [path for path in found if path.is_file() and not path.is_symlink()]


def _add(made: tarfile.TarFile, folder: Path, run: int) -> None:
    """Add the checkpoints of a run; where it removes one meanwhile, the newer ones as well."""
    for _ in range(TRIES):
        with suppress(FileNotFoundError):
            for path in _checkpoints(folder, run):
                made.add(path, str(path.relative_to(folder)))
            return


@contextmanager
def _reading(file: Path) -> Iterator[tarfile.TarFile]:
    if file.exists() and not file.is_file():  # a pipe would wait for its writer
        raise LedgerError(f"{file} is no backup of a workspace: it is no regular file")
    try:
        with tarfile.open(file, "r:") as made:  # as it was written: what is unpacked is no larger than the file
            yield made
    except tarfile.TarError as error:
        words = "is no backup of a workspace, or not all of one; give a file that fedwarden backup has written"
        raise LedgerError(f"{file} {words}") from error
