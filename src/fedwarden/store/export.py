"""A run as a file for other programs: one long table as CSV or Parquet, everything as JSON.

The table is read and written round by round, so that a run of any length takes the same memory.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from ..core.errors import require
from .record import RunRecord
from .series import Series, columns

FORMATS = ("csv", "parquet", "json")
FORMULA = re.compile(r"\W*?[=+@\u2212-]|\W?\s")  # a spreadsheet may pass over what comes before the sign
TOGETHER = 25  # rounds in one part of a Parquet file
TYPES = {"round": "int64", "client": "string", "watch": "string", "flagged": "bool_", "excluded": "bool_"}

Table = dict[str, NDArray[Any]]


@contextmanager
def draft(path: Path) -> Iterator[Path]:
    """A temporary name beside a file; it takes the file's place when everything has been written."""
    made = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        yield made
        os.replace(made, path)
    finally:
        made.unlink(missing_ok=True)


def table(record: RunRecord) -> tuple[tuple[str, ...], Iterator[Table]]:
    """The names of the long table's columns, and its rounds one by one."""
    rounds = ([record.story.full(t)] for t in record.series.rounds.tolist())
    return tuple(columns(Series.of(()), record.reported)), (columns(Series.of(r), record.reported) for r in rounds)


def write_csv(record: RunRecord, file: IO[str]) -> None:
    """The long table; an empty field is a value that is not there, and no name is a formula to a spreadsheet."""
    made = csv.writer(file, lineterminator="\n")
    names, rounds = table(record)
    made.writerow(map(_cell, names))
    for found in rounds:
        made.writerows(zip(*([_cell(v) for v in found[name].tolist()] for name in names), strict=True))


def _cell(value: object) -> object:
    """A name that a client chose may begin like a formula; a leading apostrophe makes it text.

    >>> [_cell(v) for v in ("node-1", "=1+1", " @b", "\uff1d1", -0.5, float("nan"))]
    ['node-1', "'=1+1", "' @b", "'\uff1d1", -0.5, None]
    """
    if isinstance(value, str):
        return f"'{value}" if FORMULA.match(normalize("NFKC", value)) else value
    return None if value != value else value


def write_parquet(record: RunRecord, path: Path) -> None:
    """The long table, compressed, with the run's configuration in the metadata of the file."""
    arrow, parquet = (require(name, "dashboard", "Parquet") for name in ("pyarrow", "pyarrow.parquet"))
    names, rounds = table(record)
    fields = [(name, getattr(arrow, TYPES.get(name, "float64"))()) for name in names]
    schema = arrow.schema(fields, {"fedwarden": json.dumps(head(record))})
    with parquet.ParquetWriter(path, schema) as writer:
        while some := list(islice(rounds, TOGETHER)):
            joined = {name: np.concatenate([found[name] for found in some]) for name in names}
            writer.write_table(arrow.table(joined, schema))


def write_json(record: RunRecord, file: IO[str]) -> None:
    """Everything that is known of the run, as one object; ``table`` is the long table by column.

    None is a value that is not there. Columns grow in files of their own, since the rounds are read once.
    """
    names, rounds = table(record)
    file.write(f'{json.dumps(_told(record), allow_nan=False)[:-1]}, "table": {{')
    with ExitStack() as stack:
        kept = {name: stack.enter_context(TemporaryFile("w+", encoding="utf-8")) for name in names}
        for found in rounds:
            for name, column in found.items():
                kept[name].write(f"{', ' * (kept[name].tell() > 0)}{json.dumps(_plain(column), allow_nan=False)[1:-1]}")
        for i, (name, part) in enumerate(kept.items()):
            part.seek(0)
            file.write(f"{', ' * (i > 0)}{json.dumps(name)}: [")
            shutil.copyfileobj(part, file)
            file.write("]")
    file.write("}}")


def _told(record: RunRecord) -> dict[str, Any]:
    """Everything but the table."""
    series = record.series
    return {
        **head(record),
        "metrics": {"round": series.rounds.tolist(), **{k: _plain(v) for k, v in series.metrics.items()}},
        "excluded_in": series.excluded_in,
        "reasons": {c: str(record.story.reason(c)) for c in record.story.standings},
        "rejected": [{"round": t, "client": c, "reason": str(r), **_sound(r.table())} for t, c, r in series.rejected],
        "notes": [{"round": t, "note": str(note), **_sound(note.table())} for t, note in series.notes],
        "said": [_sound(asdict(said)) for said in record.said],
        "observations": [
            {"observer": who, **_sound(asdict(o))} for who, seen in record.observations.items() for o in seen
        ],
    }


def head(record: RunRecord) -> dict[str, Any]:
    """The run without its rounds."""
    known = asdict(record.run)
    return {name: _sound(value) for name, value in known.items() if name not in ("rounds", "committed")}


def _plain(column: NDArray[Any]) -> list[Any]:
    sound = column.dtype.kind != "f" or np.isfinite(column).all()
    return column.tolist() if sound else [_number(v) for v in column.tolist()]


def _number(value: object) -> object:
    """JSON has no NaN and no infinity."""
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _sound(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _sound(v) for k, v in value.items()}
    return [_sound(v) for v in value] if isinstance(value, list | tuple) else _number(value)
