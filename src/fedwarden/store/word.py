"""The operator's word: what was said of a run's clients, and from which round on it holds.

It is the one thing that a running federation reads back from its ledger. What is said is recorded without a round; the
federation takes it up as it begins its next one, so that a replay and a resumed run obey the same word in every round.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from sqlite3 import Row
from typing import Literal, get_args

from ..core.notes import Note
from ..core.types import Word
from ..core.words import count
from . import cells
from .ledger import Ledger

Kind = Literal["trust", "untrust", "exclude", "readmit", "suspend", "observe", "enforce"]
KINDS: tuple[Kind, ...] = get_args(Kind)
NOTES: dict[Kind, str] = {
    "trust": "word_trusted",
    "untrust": "word_untrusted",
    "exclude": "word_excluded",
    "readmit": "word_readmitted",
    "suspend": "word_suspended",
    "observe": "word_observing",
    "enforce": "word_enforcing",
}
UNSAID = "no reason given"
EARLIER = "run "  # begins the name of what a run left, where another one names an operator


@dataclass(frozen=True)
class Said:
    """One thing that the operator said: what, of which client (empty for observe and enforce), by whom, why and when.

    ``round`` is the first round that obeys it, None until a running federation has taken it up.
    """

    number: int
    kind: Kind
    client: str
    by: str
    reason: str
    said_at: float
    round: int | None = None

    @property
    def carried(self) -> bool:
        """Whether an earlier run left it; then it waits until its client joins."""
        return self.by.startswith(EARLIER)

    @property
    def note(self) -> Note:
        """What is noted in the round that first obeys it."""
        of = (self.client,) if self.client else ()
        by = self.by if self.carried else f"operator {self.by}"
        return Note.of(NOTES[self.kind], *of, by=by, reason=self.reason or UNSAID)

    def __str__(self) -> str:
        when = "the next round on" if self.round is None else f"round {self.round} on"
        return f"From {when}: {self.note}."


def word_of(entries: Sequence[Said], round: int) -> Word:
    """The word that holds in a round: everything taken up by then, in the order in which it was said.

    >>> said = [Said(1, "trust", "a", "me", "", 0.0, 2), Said(2, "exclude", "b", "me", "", 0.0, 2)]
    >>> said += [Said(3, "readmit", "b", "me", "", 0.0, 4), Said(4, "observe", "", "me", "", 0.0)]
    >>> [sorted(word_of(said, t).excluded) for t in (1, 2, 3, 4)]
    [[], ['b'], ['b'], []]
    >>> [sorted(word_of(said, t).readmitted) for t in (3, 4, 5)], word_of(said, 5).observing
    ([[], ['b'], []], False)
    """
    word = Word()
    for said in entries:
        if said.round is None or said.round > round:
            continue
        one = frozenset((said.client,))
        match said.kind:
            case "trust":
                word = replace(word, trusted=word.trusted | one)
            case "untrust":
                word = replace(word, trusted=word.trusted - one)
            case "exclude":
                word = replace(word, excluded=word.excluded | one)
            case "readmit":
                now = one if said.round == round else frozenset[str]()
                word = replace(word, excluded=word.excluded - one, readmitted=word.readmitted | now)
            case "suspend":
                word = replace(word, suspended=word.suspended | one if said.round == round else word.suspended)
            case "observe" | "enforce":
                word = replace(word, observing=said.kind == "observe")
    return word


def latest(entries: Sequence[Said]) -> Word:
    """The word as it will hold once everything that was said is taken up."""
    last = max((said.round for said in entries if said.round is not None), default=0) + 1
    return word_of([said if said.round is not None else replace(said, round=last) for said in entries], last + 1)


def notes_of(entries: Sequence[Said], round: int) -> tuple[Note, ...]:
    """What is noted of the word in a round: what takes effect in it."""
    return tuple(said.note for said in entries if said.round == round)


def said_in(ledger: Ledger, run: int) -> list[Said]:
    """Everything that was said of a run, in order."""
    rows = ledger.rows("word", run, "ORDER BY number")
    with ledger.reading(f"run {run}, table word"):
        return [read_said(row) for row in rows]


def clients_seen(ledger: Ledger, run: int) -> frozenset[str]:
    """The clients that a run's rounds name: those that answered, and those whose reply was rejected."""
    rows = ledger.query(
        "SELECT name FROM client WHERE run = ? UNION SELECT client FROM remark WHERE run = ? AND about = 'rejected'",
        run,
        run,
    )
    with ledger.reading(f"run {run}, its clients"):
        return frozenset(cells.text(row, "name") for row in rows)


def say(ledger: Ledger, run: int, kind: Kind, client: str, by: str, reason: str) -> Said:
    """Record something that the operator says; the run's next round obeys it."""
    with ledger.transaction():
        return put(ledger, run, kind, client, by, reason)


def put(ledger: Ledger, run: int, kind: Kind, client: str, by: str, reason: str) -> Said:
    """The same within a transaction."""
    client, by, reason = (cells.utf8(text) for text in (client, by, reason))
    (last,) = ledger.db.execute("SELECT COALESCE(MAX(number), 0) FROM word WHERE run = ?", (run,)).fetchone()
    said = Said(last + 1, kind, client, by, reason, time.time())
    row = (run, said.number, kind, client, by, reason, said.said_at, None)
    ledger.db.execute("INSERT INTO word VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
    return said


def take_up(ledger: Ledger, run: int, round: int, clients: Collection[str] = ()) -> list[Said]:
    """Everything that was said of a run, as it begins a round: what is new holds from this round on.

    Of what an earlier run left this is what is about the ``clients`` that are there, or that the operator has named.
    A round that was committed before, and is played again after a resume, takes up nothing new.
    """
    found = said_in(ledger, run)
    there = {*clients, *(s.client for s in found if not s.carried)}
    new = [(round, run, s.number) for s in found if s.round is None and (not s.carried or s.client in there)]
    if not new or round <= ledger.last_round(run):
        return found
    with ledger.transaction():
        ledger.db.executemany("UPDATE word SET round = ? WHERE run = ? AND number = ?", new)
    return said_in(ledger, run)


def absent(entries: Sequence[Said]) -> str:
    """How many clients of an earlier run have not joined, as a sentence; empty where all have."""
    many = len({s.client for s in entries if s.carried and s.round is None})
    known = f"{count(many, 'client')} known from an earlier run"
    return f"{known} {'has' if many == 1 else 'have'} not joined." if many else ""


def read_said(row: Row) -> Said:
    kind: Kind = cells.word(row, "kind", KINDS)  # type: ignore[assignment]
    return Said(
        cells.whole(row, "number", 1),
        kind,
        cells.text(row, "client"),
        cells.text(row, "operator"),
        cells.text(row, "reason"),
        cells.moment(row, "said_at"),
        None if row["round"] is None else cells.whole(row, "round", 1),
    )
