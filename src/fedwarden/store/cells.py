"""What one cell of the ledger holds: how it is written, and how it is read from a file that is not trusted.

Whatever cannot be what was written raises :class:`Damaged`, which names the column: types, lengths and ranges are those
of the writer, and every text that comes out can be written as UTF-8.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from sqlite3 import Row
from typing import Any

import numpy as np

from ..core.stats import Mask, Scores

STATES = ("running", "done", "interrupted", "failed")
LARGEST = 10**9  # rounds, positions
LATEST = 250_000_000_000.0  # seconds: the year 9892, which every calendar can show
DEEPEST = 40  # tables within tables
NUMBERS = {int, float, type(None)}


class Damaged(ValueError):
    """A column that does not hold what was written into it."""

    def __init__(self, column: str, wanted: str, got: object) -> None:
        text = ascii(got)
        super().__init__(f"column {column} should hold {wanted}; it holds {text[:60]}{'...' if len(text) > 60 else ''}")


def number(value: float) -> float | None:
    """SQLite keeps NaN as NULL; infinities are kept as they are."""
    return None if math.isnan(value) else float(value)


def array(values: Scores) -> str:
    """A vector as JSON, digit for digit: null for NaN, and infinity as a number that is too large for a float."""
    return _plain(json.dumps(values.tolist()))


def arrays(parts: Mapping[str, Scores]) -> str:
    return "{" + ", ".join(f"{json.dumps(part)}: {array(values)}" for part, values in parts.items()) + "}"


def by_name(values: Mapping[str, float]) -> str:
    """Numbers by name as JSON, as in :func:`array`."""
    pairs = ((json.dumps(utf8(name)), json.dumps(value)) for name, value in values.items())
    return "{" + ", ".join(f"{name}: {_plain(value)}" for name, value in pairs) + "}"


def places(flagged: Mask) -> str:
    return json.dumps(np.flatnonzero(flagged).tolist())


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


def vector(row: Row, column: str, n: int) -> Scores:
    return _vector(column, _json(column, text(row, column)), n)


def vectors(row: Row, column: str, n: int) -> dict[str, Scores]:
    """Vectors by name."""
    found = _json(column, text(row, column))
    if not isinstance(found, dict):
        raise Damaged(column, "a table", found)
    return {utf8(name): _vector(column, values, n) for name, values in found.items()}


def mask(row: Row, column: str, n: int) -> Mask:
    found, out = _json(column, text(row, column)), np.zeros(n, bool)
    if (
        type(found) is not list
        or not set(map(type, found)) <= {int}
        or (found and not 0 <= min(found) <= max(found) < n)
    ):
        raise Damaged(column, f"places below {n}", found)
    out[found] = True
    return out


def names(column: str, content: str) -> tuple[str, ...]:
    """A JSON list of names."""
    found = _json(column, content)
    if type(found) is not list or not set(map(type, found)) <= {str}:
        raise Damaged(column, "a list of names", found)
    return tuple(map(utf8, found))


def table(row: Row, column: str, **kinds: Callable[[object], bool]) -> dict[str, Any]:
    """A JSON table; values of these names are of these kinds, where they are there."""
    found = _json(column, text(row, column))
    if not isinstance(found, dict):
        raise Damaged(column, "a table", found)
    sound: dict[str, Any] = _sound(column, found)
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


def _plain(numbers: str) -> str:
    return numbers.replace("NaN", "null").replace("Infinity", "9e999")


def _json(column: str, content: str) -> object:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise Damaged(column, "JSON", content) from error


def _vector(column: str, values: object, n: int) -> Scores:
    if type(values) is not list or len(values) != n or not set(map(type, values)) <= NUMBERS:
        raise Damaged(column, f"{n} numbers", values)
    try:
        return np.array(values, dtype=np.float64)
    except OverflowError as error:
        raise Damaged(column, f"{n} numbers", values) from error


def _sound(column: str, value: Any, depth: int = 0) -> Any:
    """The same with texts that UTF-8 can hold; refused where it is nested too deep for those who walk through it."""
    if depth > DEEPEST:
        raise Damaged(column, f"tables at most {DEEPEST} deep", "...")
    if isinstance(value, dict):
        return {utf8(k): _sound(column, v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [_sound(column, v, depth + 1) for v in value]
    return utf8(value) if isinstance(value, str) else value
