"""The outbox: what a run's sinks are to be sent, whether it has arrived, and when and at which try.

Number 0 of a sink stands for the rounds of the run, up to ``round``; the others are messages, such as alerts. What
is tried is taken first, which puts off its next try, so that two processes seldom send the same.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from sqlite3 import Row
from typing import Any

from ..core.words import count
from . import cells
from .ledger import Ledger

FIRST, LONGEST = 5.0, 3600.0  # seconds from a try to the next one, which doubles with every failure
MOST = 1000  # messages that are tried together
OF_SINK = "run = ? AND sink = ?"
PENDING = "delivered IS NULL"
Content = Mapping[str, Any]


@dataclass(frozen=True)
class Message:
    """What one sink of a run is to be sent: a message of this ``content``, or the rounds themselves, as number 0.

    The content of number 0 is the sink with its options. ``delivered`` is when it arrived, at the last of ``tries``, or
    0 if the operator gave it up; ``error`` is why the try before did not succeed.
    """

    run: int
    sink: str
    number: int
    round: int
    content: dict[str, Any]
    made: float
    tries: int
    due: float
    error: str
    delivered: float | None


def rounds_of(ledger: Ledger, run: int, sink: str) -> Message | None:
    """Number 0 of a sink; None where the outbox does not know it."""
    rows = ledger.query(f"SELECT * FROM outbox WHERE {OF_SINK} AND number = 0", run, sink)
    return read(rows[0]) if rows else None


def put(
    ledger: Ledger, run: int, sink: str, table: Content, round: int, contents: Sequence[Content] | None = None
) -> None:
    """Messages that were made of the rounds up to one; without any, it is the rounds themselves that are to be sent.

    ``table`` is the sink with its options.
    """
    now = time.time()
    with ledger.transaction():
        ledger.db.execute(
            "INSERT INTO outbox VALUES (?, ?, 0, ?, ?, ?, 0, 0, '', ?) ON CONFLICT DO UPDATE SET "
            "round = excluded.round, content = excluded.content, delivered = excluded.delivered, "
            "tries = iif(delivered IS NULL, tries, 0), due = iif(delivered IS NULL, due, 0)",
            (run, sink, round, json.dumps(table), now, None if contents is None else now),
        )
        for content in contents or ():
            ledger.db.execute(
                f"INSERT INTO outbox SELECT ?, ?, MAX(number) + 1, ?, ?, ?, 0, 0, '', NULL FROM outbox WHERE {OF_SINK}",
                (run, sink, round, json.dumps(content), now, run, sink),
            )


def due(ledger: Ledger, run: int, sink: str) -> float | None:
    """When something is to be tried; None where nothing is pending."""
    rows = ledger.query(f"SELECT MIN(due) AS due FROM outbox WHERE {OF_SINK} AND {PENDING}", run, sink)
    return None if rows[0]["due"] is None else cells.moment(rows[0], "due")


def take(ledger: Ledger, run: int, sink: str) -> list[Message]:
    """What is pending, with this try counted and the next one put off."""
    with ledger.transaction():
        found = [read(row) for row in ledger.rows("outbox", run, f"AND sink = ? AND {PENDING} LIMIT {MOST}", sink)]
        pauses = [min(FIRST * 2 ** min(message.tries, 20), LONGEST) for message in found]
        made = [(time.time() + pause, *_key(message)) for pause, message in zip(pauses, found, strict=True)]
        ledger.db.executemany(f"UPDATE outbox SET tries = tries + 1, due = ? WHERE {OF_SINK} AND number = ?", made)
    return found


def settle(ledger: Ledger, messages: Sequence[Message], error: str = "") -> None:
    """They have arrived, or not for the ``error``; rounds that were added meanwhile have not."""
    rows = [(error, None if error else time.time(), *_key(m), m.round) for m in messages]
    with ledger.transaction():
        ledger.db.executemany(
            "UPDATE outbox SET error = iif(?1 = '', error, ?1), delivered = COALESCE(?2, delivered) "
            "WHERE run = ?3 AND sink = ?4 AND number = ?5 AND round = ?6", rows,
        )  # fmt: skip


def messages(ledger: Ledger, run: int | None = None, pending: bool = True) -> list[Message]:
    """What has not arrived, or all that is known, of one run or of all."""
    which = f"WHERE (?1 IS NULL OR run = ?1){f' AND {PENDING}' * pending} ORDER BY run, sink, number"
    with ledger.reading("table outbox"):
        return [read(row) for row in ledger.query(f"SELECT * FROM {ledger.sources['outbox']} {which}", run)]


def drop(ledger: Ledger, run: int | None, operator: str) -> None:
    """The operator gives up what is pending, of one run or of all."""
    with ledger.transaction():
        ledger.db.execute(
            "UPDATE outbox SET delivered = 0, error = ltrim(error || '; given up by operator ' || ?2, '; ') "
            f"WHERE (?1 IS NULL OR run = ?1) AND {PENDING}", (run, operator),
        )  # fmt: skip


def told(ledger: Ledger, run: int | None, again: str = "try now with: fedwarden send {run} --pending") -> list[str]:
    """What is pending and why, one sentence for every sink of a run or of all; when or how it is tried ``again``."""
    lines = []
    for (number, sink), mine in by_sink(messages(ledger, run)).items():
        last = max(mine, key=lambda m: m.tries)
        how = f"after {count(last.tries, 'try')}{f' ({last.error})' if last.error else ''}"
        due = datetime.fromtimestamp(max(time.time(), min(m.due for m in mine)))
        goes_on = ledger.run(number).state == "running"
        when = f"the run tries again at {due:%H:%M:%S}" if goes_on else again.format(run=number)
        lines.append(f"run {number}: {what(mine)} pending for {sink!r} {how}; {when}")
    return lines


def by_sink(found: Sequence[Message]) -> dict[tuple[int, str], list[Message]]:
    """Messages by run and sink."""
    return {key: [m for m in found if (m.run, m.sink) == key] for key in dict.fromkeys((m.run, m.sink) for m in found)}


def what(found: Sequence[Message]) -> str:
    """How many messages for one sink, or the rounds, in words."""
    return count(len(found), "message") if found[-1].number else "rounds"


def _key(message: Message) -> tuple[int, str, int]:
    return message.run, message.sink, message.number


def read(row: Row) -> Message:
    return Message(
        cells.whole(row, "run", 1), cells.text(row, "sink"), cells.whole(row, "number"), cells.whole(row, "round"),
        cells.table(row, "content"), cells.moment(row, "made"), cells.whole(row, "tries"), cells.moment(row, "due"),
        cells.text(row, "error"), None if row["delivered"] is None else cells.moment(row, "delivered"),
    )  # fmt: skip
