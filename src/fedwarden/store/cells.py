"""What one cell of the ledger holds: how it is written, and how it is read from a file that is not trusted.

Whatever cannot be what was written raises :class:`Damaged`, which names the column: types, lengths and ranges are those
of the writer, and every text that comes out can be written as UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from sqlite3 import Row
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.stats import Mask, Scores

STATES = ("running", "done", "interrupted", "failed")
LARGEST = 10**9  # rounds, positions
LATEST = 250_000_000_000.0  # seconds: the year 9892, which every calendar can show
DEEPEST = 40  # tables within tables


class Damaged(ValueError):
    """A column that does not hold what was written into it."""

    def __init__(self, column: str, wanted: str, got: object) -> None:
        text = ascii(got)
        super().__init__(f"column {column} should hold {wanted}; it holds {text[:60]}{'...' if len(text) > 60 else ''}")


def number(value: float) -> float | None:
    """SQLite keeps NaN as NULL; infinities are kept as they are."""
    return None if math.isnan(value) else float(value)


def floats(values: Scores) -> bytes:
    return np.asarray(values, "<f8").tobytes()


def places(flagged: Mask) -> bytes:
    return np.flatnonzero(flagged).astype("<i4").tobytes()


def by_name(values: Mapping[str, float]) -> str:
    """Numbers by name as JSON, digit for digit: null for NaN, and infinity as a number too large for a float."""
    return plain(json.dumps({utf8(name): float(value) for name, value in values.items()}))


def decode(raw: bytes) -> str:
    """Text as SQLite hands it over; bytes that are not UTF-8 become characters that :func:`text` refuses."""
    return raw.decode("utf-8", "surrogateescape")


def text(row: Row, column: str) -> str:
    found = row[column]
    if not isinstance(found, str) or utf8(found) != found:
        raise Damaged(column, "text", found)
    return found


def word(row: Row, column: str, known: tuple[str, ...]) -> str:
    if (found := row[column]) not in known:
        raise Damaged(column, f"one of {', '.join(known)}", found)
    return str(found)


def whole(row: Row, column: str, least: int = 0, most: int = LARGEST) -> int:
    found = row[column]
    if not isinstance(found, int) or not least <= found <= most:
        raise Damaged(column, f"a whole number from {least} to {most}", found)
    return found


def real(row: Row, column: str, missing: float = math.nan) -> float:
    found = row[column]
    if found is not None and not isinstance(found, int | float):
        raise Damaged(column, "a number", found)
    return missing if found is None else float(found)


def moment(row: Row, column: str) -> float:
    """A time in seconds since 1970."""
    if not 0.0 <= (found := real(row, column)) <= LATEST:
        raise Damaged(column, "a time", row[column])
    return found


def vectors(rows: Sequence[Row], column: str, n: int) -> NDArray[np.float64]:
    """So many packed numbers of each row."""
    found = [row[column] for row in rows]
    for cell in found:
        if not isinstance(cell, bytes) or len(cell) != 8 * n:
            raise Damaged(column, f"{n} numbers", cell)
    return np.frombuffer(b"".join(found), "<f8").astype(np.float64).reshape(len(rows), n)


def vector(row: Row, column: str, n: int) -> Scores:
    return vectors([row], column, n).ravel()


def integers(column: str, found: object) -> NDArray[np.int32]:
    """Packed whole numbers."""
    if not isinstance(found, bytes) or len(found) % 4:
        raise Damaged(column, "packed whole numbers", found)
    return np.frombuffer(found, "<i4")


def masks(rows: Sequence[Row], column: str, n: int) -> NDArray[np.bool_]:
    """Packed places below so many, of each row."""
    found = [integers(column, row[column]) for row in rows]
    at, out = np.concatenate(found), np.zeros((len(rows), n), bool)
    if len(at) and not 0 <= at.min() <= at.max() < n:
        raise Damaged(column, f"places below {n}", at.tolist())
    out[np.repeat(np.arange(len(rows)), [*map(len, found)]), at] = True
    return out


def mask(row: Row, column: str, n: int) -> Mask:
    return masks([row], column, n).ravel()


def names(row: Row, column: str) -> tuple[str, ...]:
    """A JSON list of names."""
    found = _json(column, text(row, column))
    if type(found) is not list or not set(map(type, found)) <= {str}:
        raise Damaged(column, "a list of names", found)
    return tuple(map(utf8, found))


def table(row: Row, column: str, **kinds: Callable[[object], bool]) -> dict[str, Any]:
    """A JSON table; values of these names are of these kinds, where they are there."""
    content = text(row, column)
    found = _json(column, content)
    if not isinstance(found, dict):
        raise Damaged(column, "a table", found)
    flat = "\\u" not in content and content.count("{") + content.count("[") <= DEEPEST
    sound: dict[str, Any] = found if flat else _sound(column, found)
    for name, kind in kinds.items():
        if name in sound and not kind(sound[name]):
            raise Damaged(column, f"another kind of {name!r}", sound[name])
    return sound


def as_float(column: str, value: float) -> float:
    """A number of a JSON table; whole ones may be larger than any float."""
    try:
        return float(value)
    except OverflowError as error:
        raise Damaged(column, "a number", value) from error


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def utf8(found: str) -> str:
    """The text, with what UTF-8 has no bytes for spelled out; a client may choose such a name.

    >>> utf8("a\\ud800b")
    'a\\\\ud800b'
    """
    return found if found.isascii() else found.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(numbers: str) -> str:
    """JSON that every reader takes: it has no NaN and no infinity."""
    return numbers.replace("NaN", "null").replace("Infinity", "9e999")


def _json(column: str, content: str) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(column, "JSON", content) from error


def _sound(column: str, value: Any, depth: int = 0) -> Any:
    """The same with texts that UTF-8 can hold; refused where it is nested too deep for those who walk through it."""
    if depth > DEEPEST:
        raise Damaged(column, f"tables at most {DEEPEST} deep", "...")
    if isinstance(value, dict):
        return {utf8(k): _sound(column, v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_sound(column, v, depth + 1) for v in value]
    return utf8(value) if isinstance(value, str) else value
