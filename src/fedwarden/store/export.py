"""A run as a file for other programs: one long table as CSV or Parquet, everything as JSON."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from ..core.errors import require
from .record import RunRecord
from .series import columns

FORMATS = ("csv", "parquet", "json")
FORMULA = re.compile(r"\W*?[=+@\u2212-]|\W?\s")  # a spreadsheet may pass over what comes before the sign


def write_csv(record: RunRecord, file: IO[str]) -> None:
    """The long table; an empty field is a value that is not there, and no name is a formula to a spreadsheet."""
    made = csv.writer(file, lineterminator="\n")
    found = columns(record.series)
    made.writerow(found)
    made.writerows(zip(*([_cell(v) for v in column.tolist()] for column in found.values()), strict=True))


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
    table = arrow.table({name: arrow.array(column) for name, column in columns(record.series).items()})
    parquet.write_table(table.replace_schema_metadata({"fedwarden": json.dumps(head(record))}), path)


def write_json(record: RunRecord, file: IO[str]) -> None:
    """Everything that is known of the run, as one object."""
    file.write(json.dumps(as_table(record), allow_nan=False))  # json.dump is many times slower


def as_table(record: RunRecord) -> dict[str, Any]:
    """Everything that is known of the run; ``table`` is the long table by column, None is a value that is not there."""
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
        "table": {name: _plain(column) for name, column in columns(series).items()},
    }


def head(record: RunRecord) -> dict[str, Any]:
    """The run without its rounds."""
    run = record.run
    kept = ("id", "name", "created", "state", "engine", "config", "versions", "summary")
    found: dict[str, Any] = _sound({name: getattr(run, name) for name in kept})
    return found


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
