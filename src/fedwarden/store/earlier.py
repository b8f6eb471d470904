"""Ledgers of earlier schemas: a query a table that gives its rows as today's table has them.

Reading uses these queries in place of the tables. Migration fills today's tables from them, in one transaction, after
the file was copied.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

from . import cells
from .connection import ERRORS, failed, journal, open_writer
from .schema import OLDEST, SCHEMA, STATEMENTS

LOG = logging.getLogger("fedwarden")
PATIENCE = 2.0  # seconds to wait for others that have the ledger open
TEXT_AS_NOTE = "json_object('kind', 'text', 'clients', json_array(), 'values', json_object('text', {}))"
Names = dict[int, dict[int, str]]  # of each run its clients by number


def tables(version: int, prefix: str = "main.") -> dict[str, str]:
    """For each table of today, what has its rows in a ledger of an earlier schema; see :func:`teach`."""
    note, about = ("note", "about") if version > 4 else (TEXT_AS_NOTE.format("text"), "kind")
    warning = "warning" if version > 4 else f"iif(warning IS NULL, NULL, {TEXT_AS_NOTE.format('warning')})"
    suspended = "clients_of(run, suspended)" if version > 5 else "x''"
    queries = {
        "run": f"SELECT * FROM {prefix}run",
        "client": "SELECT 0 AS run, 0 AS number, '' AS name WHERE 0",
        "round": f"""SELECT run, round, finished, coalesce(metrics, '{{}}') AS metrics,
            clients_of(run, clients) AS clients, places_of(flagged) AS flagged, clients_of(run, excluded) AS excluded,
            {suspended} AS suspended, numbers_of(num_examples) AS num_examples, numbers_of(weights) AS weights
            FROM {prefix}round LEFT JOIN (
                SELECT run, round, by_name(name, value) AS metrics FROM {prefix}metric GROUP BY run, round
            ) USING (run, round)""",
        "watch": f"""SELECT run, round, watch, position, threshold, {warning} AS warning, words,
            places_of(flagged) AS flagged, numbers_of(signal) AS signal, numbers_of(score) AS score,
            names_of(parts) AS parts, values_of(parts) AS part FROM {prefix}watch""",
        "remark": f"SELECT run, round, position, {about} AS about, client, {note} AS note FROM {prefix}remark",
        "report": f"""SELECT run, round, name, clients_of(run, names_of(content)) AS clients,
            values_of(content) AS content FROM {prefix}report""",
        "audit": f"SELECT * FROM {prefix}audit",
        "word": f"SELECT * FROM {prefix}word",
        "outbox": "SELECT 0 AS run, '' AS sink, 0 AS number, 0 AS round, '' AS content, 0.0 AS made, 0 AS tries, "
        "0.0 AS due, '' AS error, NULL AS delivered WHERE 0",
    }
    if version < 7:
        queries["report"] = "SELECT 0 AS run, 0 AS round, '' AS name, x'' AS clients, x'' AS content WHERE 0"
    if version < 8:
        nothing = "0 AS run, 0 AS number, '' AS kind, '' AS client, '' AS operator, '' AS reason, 0.0 AS said_at"
        queries["word"] = f"SELECT {nothing}, NULL AS round WHERE 0"
    return {table: f"({query})" for table, query in queries.items()}


def tables_of(version: int) -> tuple[str, ...]:
    """The tables that a ledger of an earlier schema has."""
    return ("run", "round", "metric", "watch", "remark", "audit", *("report", "word")[: max(version - 6, 0)])


def teach(db: sqlite3.Connection, known: Names) -> None:
    """Give a connection the functions that the queries use; clients are numbered in ``known`` as they come.

    What is not the JSON that was written is handed on as it is, so that the reader finds it and names the column.
    """
    numbers: dict[int, dict[str, int]] = {}

    def number(run: int, names: list[str]) -> bytes:
        of_run = numbers.setdefault(run, {})
        found = [of_run.setdefault(cells.utf8(name), len(of_run) + 1) for name in names]
        known.setdefault(run, {}).update(zip(found, map(cells.utf8, names), strict=True))
        return struct.pack(f"<{len(found)}i", *found)

    def packed(values: list[float | None]) -> bytes:
        return struct.pack(f"<{len(values)}d", *(float("nan") if v is None else v for v in values))

    def of_table(table: dict[str, list[float | None] | float | None]) -> bytes:
        return b"".join(packed(v if isinstance(v, list) else [v]) for v in table.values())

    functions: dict[str, tuple[int, Callable[..., Any]]] = {
        "clients_of": (2, lambda run, text: number(run, json.loads(text))),
        "places_of": (1, lambda text: struct.pack(f"<{len(places := json.loads(text))}i", *places)),
        "numbers_of": (1, lambda text: packed(json.loads(text))),
        "names_of": (1, lambda text: json.dumps(list(json.loads(text)))),
        "values_of": (1, lambda text: of_table(json.loads(text))),
    }

    def careful(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: object) -> object:
            try:
                return function(*arguments)
            except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError, struct.error):
                return arguments[-1]

        return call

    for name, (arguments, function) in functions.items():
        db.create_function(name, arguments, careful(function), deterministic=True)
    db.create_aggregate("by_name", 2, _ByName)


class _ByName:
    """Rows of a name and a number as one JSON table, digit for digit."""

    def __init__(self) -> None:
        self.found: dict[str, object] = {}

    def step(self, *row: object) -> None:
        name, value = row
        self.found[str(name)] = value

    def finalize(self) -> Any:
        return cells.plain(json.dumps({cells.utf8(k): v for k, v in self.found.items()}, default=ascii))


def beside(path: Path, what: str) -> Path:
    """An empty file beside the ledger, for a copy of it, that no other process takes as well."""
    for n in count(1):
        with suppress(FileExistsError):
            (made := path.with_name(f"{path.name}.{what}-{n}")).touch(exist_ok=False)
            break
    return made


def migrate(path: Path) -> None:
    """Bring a ledger of an earlier schema up to date where no other process has it open; a copy stays beside it."""
    with closing(open_writer(path, PATIENCE)) as db:
        version = int(db.execute("PRAGMA user_version").fetchone()[0])
        if not OLDEST <= version < SCHEMA:
            return
        copy = beside(path, f"schema-{version}")
        try:
            journal(db, path, "DELETE", PATIENCE)
            db.execute("BEGIN")
            db.execute("SELECT 1 FROM sqlite_master").fetchall()  # from here on nobody else can commit
            if db.execute("PRAGMA user_version").fetchone()[0] != version:  # another process was first
                db.execute("ROLLBACK")
                copy.unlink()
                return
            with closing(sqlite3.connect(copy)) as target:
                db.backup(target)
            _fill(db, version)
            db.execute("COMMIT")
        except BaseException as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            copy.unlink(missing_ok=True)
            if isinstance(error, ERRORS):
                raise failed(f"cannot bring the ledger {path} up to date", error, 0.0) from error
            raise
    words = "The ledger %s was brought from schema %d to %d; as it was it is kept as %s."
    LOG.warning(words, path, version, SCHEMA, copy.name)


def _fill(db: sqlite3.Connection, version: int) -> None:
    """Put today's tables in the place of those of an earlier schema, with the same content."""
    known: Names = {}
    teach(db, known)
    for view in ("client", "score"):
        db.execute(f"DROP VIEW IF EXISTS {view}")
    for table in tables_of(version):
        db.execute(f"ALTER TABLE {table} RENAME TO old_{table}")
    for statement in STATEMENTS:
        db.execute(statement)
    for table, query in tables(version, "old_").items():
        db.execute(f"INSERT INTO {table} SELECT * FROM {query}{' ORDER BY run, round' * (table in SORTED)}")
    db.executemany(
        "INSERT INTO client VALUES (?, ?, ?)", ((run, *pair) for run, pairs in known.items() for pair in pairs.items())
    )
    for table in tables_of(version):
        db.execute(f"DROP TABLE old_{table}")
    db.execute(f"PRAGMA user_version = {SCHEMA}")


SORTED = ("round", "watch", "report")  # by run and round, in which order they are read
