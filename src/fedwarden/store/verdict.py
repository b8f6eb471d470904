"""What is said of a run's clients, the same everywhere: who is out of the model, who stood out, since when, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ..core.notes import Note
from ..core.words import count, listed
from .explain import EARLIER, Reason
from .ledger import Ledger, Run
from .series import Series

State = Literal["excluded", "suspended", "left out", "stood out"]
"""Out for good; out until clean; flagged and not in the model of some rounds; flagged, and in the model even so."""

STATES: tuple[State, ...] = get_args(State)
DOUBTS = ("left_out", "spared")  # notes that a client was left out of one round
TOLD = (*DOUBTS, "suspended", "for_good")  # notes that say no more than the verdict does
NOT_JUDGED = "No watch was set, so no client was judged."


@dataclass(frozen=True)
class Standing:
    """A client that is worth a word: what it is, since which round, and in how many rounds it was flagged.

    ``watches`` are those that flagged it, the most frequent first, with how often they did.
    """

    client: str
    state: State
    since: int
    flagged: int
    watches: Mapping[str, int] = field(default_factory=dict)
    words: str = ""

    @property
    def out(self) -> bool:
        """Whether it is out of the model for more than single rounds."""
        return self.state in ("excluded", "suspended")

    def __str__(self) -> str:
        return (
            f"{self.state} since round {self.since}" if self.out else f"{self.state} in {count(self.flagged, 'round')}"
        )


@dataclass(frozen=True)
class Verdict:
    """All standings of a run of so many rounds and clients, the gravest first; ``str(verdict)`` is one paragraph.

    >>> out = Standing("7", "excluded", 3, 1)
    >>> print(Verdict((out, Standing("5", "stood out", 2, 4)), 20, 15))
    1 of 20 clients is excluded: 7 since round 3. 1 more stood out: 5 in 4 of 15 rounds.
    >>> print(Verdict((), 20, 15), Verdict((), 20, 15, judged=False), sep="; ")
    No client was excluded, and none stood out.; No watch was set, so no client was judged.
    """

    standings: tuple[Standing, ...]
    clients: int
    rounds: int
    judged: bool = True

    def of(self, *states: State) -> list[Standing]:
        return [s for s in self.standings if s.state in states]

    @property
    def gone(self) -> set[str]:
        """Who is excluded, suspended, or was left out of some rounds."""
        return {s.client for s in self.of("excluded", "suspended", "left out")}

    @property
    def short(self) -> str:
        """In a few words, for a column.

        >>> Verdict((Standing("7", "excluded", 3, 1), Standing("5", "stood out", 2, 4)), 20, 15).short
        '7 excluded; 5 stood out'
        """
        words: list[str] = []
        for state in STATES:
            if found := [s.client for s in self.standings if s.state == state]:
                words.append(f"{listed(found, most=4)} {state}")
        return "; ".join(words) or ("nobody" if self.judged else "not judged")

    def __str__(self) -> str:
        return " ".join(self.sentences)

    @property
    def sentences(self) -> list[str]:
        """What is said, in the order of gravity."""
        if not self.judged and not self.standings:
            return [NOT_JUDGED]
        told: list[str] = []
        for state in ("excluded", "suspended"):
            if found := [s for s in self.standings if s.state == state]:
                told.append(f"{self._of_all(len(found), told)} {_is(found)} {state}: {_by_round(found)}.")
        if not told:
            told = ["No client was excluded" + (", and none stood out." if not self.standings else ".")]
        left, stood = self.of("left out"), self.of("stood out")
        more = self._of_all(len(left), told if self.gone - {s.client for s in left} else [])
        if left:
            told.append(f"{more} {_was(left)} left out of single rounds: {self._by_count(left)}.")
        if stood:
            told.append(f"{self._of_all(len(stood), told if self.gone else [])} stood out: {self._by_count(stood)}.")
        return told

    def _of_all(self, n: int, before: Sequence[str]) -> str:
        return f"{n} more" if before else f"{n} of {count(self.clients, 'client')}"

    def _by_count(self, found: Sequence[Standing]) -> str:
        groups: dict[int, list[str]] = {}
        for s in sorted(found, key=lambda s: -s.flagged):
            groups.setdefault(s.flagged, []).append(s.client)
        return "; ".join(f"{listed(who)} in {k} of {count(self.rounds, 'round')}" for k, who in groups.items())


def verdict(series: Series) -> Verdict:
    """Who is out and who stood out in a run."""
    refused = {(t, c) for t, c, _ in series.rejected}
    by_watch = {w.name: w.flagged.sum(axis=0) for w in series.watches.values()}
    doubted = _doubted(series.notes)
    found = []
    for j, client in enumerate(series.clients):
        flagged = np.flatnonzero(series.flagged[:, j])
        noted = {int(series.rounds[i]) for i in flagged} | set(doubted.get(client, ()))
        out = len(series) > 0 and bool(series.excluded[-1, j])
        if not out and not noted:
            continue
        absent = any(series.weights[i, j] == 0 and (int(series.rounds[i]), client) not in refused for i in flagged)
        state: State = "left out" if absent or client in doubted else "stood out"
        since = min(noted, default=0)
        if out:
            state = "suspended" if client in series.suspended else "excluded"
            inside = np.flatnonzero(~series.excluded[:, j])
            since = int(series.rounds[inside[-1] + 1 if len(inside) else 0])
        often = {name: int(k[j]) for name, k in by_watch.items() if k[j]}
        often = dict(sorted(often.items(), key=lambda pair: -pair[1]))
        words = [series.watches[name].words for name in often] + [*doubted.get(client, {}).values()]
        found.append(Standing(client, state, since, len(noted), often, words[0] if words else ""))
    return Verdict(_graver_first(found), len(series.clients), len(series), bool(series.watches))


def verdict_of(ledger: Ledger, run: Run) -> Verdict:
    """The same without reading the scores, for lists of runs: its clients are those of the last round."""
    last = ledger.last_round(run.id)
    if not last:
        return Verdict((), 0, 0, judged=False)
    record = ledger.record(run.id, last)
    flags = ledger.query(
        """SELECT round.round, json_extract(clients, '$[' || each.value || ']') AS client,
            json_extract(weights, '$[' || each.value || ']') AS weight
        FROM round, json_each(round.flagged) AS each WHERE run = ?""",
        run.id,
    )
    doubts = ledger.query(
        """SELECT round, each.value AS client, 0 AS weight FROM remark, json_each(note, '$.clients') AS each
        WHERE run = ? AND about = 'note' AND json_extract(note, '$.kind') IN (?, ?)""",
        run.id,
        *DOUBTS,
    )
    rounds: dict[str, set[int]] = {}
    left = set()
    for row in (*flags, *doubts):
        rounds.setdefault(row["client"], set()).add(row["round"])
        left |= {row["client"]} if row["weight"] == 0 else set()
    found = []
    for client in dict.fromkeys([*record.excluded, *rounds]):
        state: State = "left out" if client in left else "stood out"
        if client in record.excluded:
            state = "suspended" if client in record.suspended else "excluded"
        noted = rounds.get(client, set())
        found.append(Standing(client, state, min(noted, default=0), len(noted)))
    return Verdict(_graver_first(found), len(record.client_ids), run.rounds, bool(record.watches))


def _doubted(notes: Sequence[tuple[int, Note]]) -> dict[str, dict[int, str]]:
    """Who was left out of single rounds, by round, with the words for it."""
    found: dict[str, dict[int, str]] = {}
    for t, note in notes:
        for client in note.clients if note.kind in DOUBTS else ():
            found.setdefault(client, {})[t] = str(note.values.get("words", ""))
    return found


def why(standing: Standing, reason: Reason | None = None) -> str:
    """Why a client stands as it does: the reason it was left out, or what most of its flags say."""
    if reason is not None and standing.state != "stood out":
        return str(reason)
    by = ", ".join(f"{name} ({k})" for name, k in standing.watches.items())
    told = "; ".join(part for part in (standing.words, f"flagged by {by}" if by else "") if part)
    return told or (EARLIER if standing.flagged else "")


def _graver_first(found: Sequence[Standing]) -> tuple[Standing, ...]:
    return tuple(sorted(found, key=lambda s: (STATES.index(s.state), s.since if s.out else -s.flagged)))


def _by_round(found: Sequence[Standing]) -> str:
    groups: dict[int, list[str]] = {}
    for s in sorted(found, key=lambda s: s.since):
        groups.setdefault(s.since, []).append(s.client)
    return listed([f"{listed(who)} since round {t}" for t, who in groups.items()])


def _is(found: Sequence[Standing]) -> str:
    return "is" if len(found) == 1 else "are"


def _was(found: Sequence[Standing]) -> str:
    return "was" if len(found) == 1 else "were"
