"""What is said of a run's clients, the same everywhere: their states, since when, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from ..core.notes import DOUBTS, Note
from ..core.types import RoundRecord
from ..core.words import count, listed
from .different import different, harm_not_shown
from .explain import EARLIER, Reason
from .ledger import Ledger, Run
from .series import Series, client_order
from .word import NOTES

State = Literal["excluded", "suspended", "skipped", "on trial", "stood out"]
"""Excluded for good; suspended for a bounded number of rounds; in doubt, and not in the model of the last round of
doubt; in doubt, and in it; flagged, and no more than that."""

STATES: tuple[State, ...] = get_args(State)
COPIES = {"copies_share": "share one vote", "copies_as_one": "are judged as one"}
"""What follows for clients that sent identical updates, by the kind of their note."""
TOLD = (
    *DOUBTS,
    *COPIES,
    "lone_weights",
    "suspended",
    "for_good",
    *NOTES.values(),
)  # notes that say no more than is shown without them
MOST = 6  # groups of clients in doubt that a sentence names
NAMED = 3  # clients that are different that a closing line is about, each
NOT_JUDGED = "No watch was set, so no client was judged."


@dataclass(frozen=True)
class Standing:
    """A client that is worth a word: what it is, since which round, and in how many rounds it was flagged.

    ``watches`` are those that flagged it, the most frequent first, with how often they did. ``tried`` counts the rounds
    in which it was on trial, and ``skipped`` those in which it was flagged or in doubt and not in the model.
    ``different`` is the note of its last doubt, where it is in doubt or often was, and no harm was measured.
    """

    client: str
    state: State
    since: int
    flagged: int
    watches: Mapping[str, int] = field(default_factory=dict)
    words: str = ""
    tried: int = 0
    skipped: int = 0
    different: Note | None = None

    @property
    def out(self) -> bool:
        """Whether it is out of the model for more than single rounds."""
        return self.state in ("excluded", "suspended")

    def __str__(self) -> str:
        """Its state in words.

        >>> print(Standing("7", "skipped", 3, 9, tried=7, skipped=2), Standing("7", "stood out", 3, 1), sep="; ")
        on trial in 7 rounds, skipped in 2; stood out in 1 round
        """
        if self.out:
            return f"{self.state} since round {self.since}"
        if self.tried:
            also = f", skipped in {self.skipped}" if self.skipped else ""
            return f"on trial in {count(self.tried, 'round')}{also}"
        return f"{self.state} in {count(self.skipped or self.flagged, 'round')}"


@dataclass(frozen=True)
class Verdict:
    """All standings of a run of so many rounds and clients, the gravest first; ``str(verdict)`` is one paragraph.

    ``cut`` counts, by client, the rounds in which weights that it alone moved were left out. ``as_one`` are the groups
    of clients that sent identical updates, each with its number of rounds and what follows for it.

    >>> out = Standing("7", "excluded", 3, 1)
    >>> print(Verdict((out, Standing("5", "stood out", 2, 4)), 20, 15))
    1 of 20 clients is excluded: 7 since round 3. 1 more stood out: 5 in 4 of 15 rounds.
    >>> tried, skipped = Standing("3", "on trial", 2, 9, tried=7, skipped=2), Standing("4", "skipped", 2, 1, skipped=1)
    >>> print(Verdict((tried, skipped), 8, 12))
    No client was excluded. 1 of 8 clients was in doubt: 3 on trial in 7 and skipped in 2 of 12 rounds. 1 more was
    skipped: 4 in 1 of 12 rounds.
    >>> print(Verdict((), 20, 15), Verdict((), 20, 15, judged=False), sep="; ")
    No client was excluded, and none stood out.; No watch was set, so no client was judged.
    """

    standings: tuple[Standing, ...]
    clients: int
    rounds: int
    judged: bool = True
    cut: Mapping[str, int] = field(default_factory=dict)
    as_one: Mapping[tuple[str, ...], tuple[int, str]] = field(default_factory=dict)

    def of(self, *states: State) -> list[Standing]:
        return [s for s in self.standings if s.state in states]

    @property
    def gone(self) -> set[str]:
        """The clients that are excluded, suspended or were in doubt."""
        return {s.client for s in self.standings if s.state != "stood out"}

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
        of_all = count(self.rounds, "round")
        alike = [
            f"Clients {listed(group)} act as one: they sent identical updates in {k} of {of_all} and {follows}."
            for group, (k, follows) in list(self.as_one.items())[:MOST]
        ]
        if not self.judged and not self.standings:
            return [NOT_JUDGED, *alike]
        told: list[str] = []
        for state in ("excluded", "suspended"):
            if found := [s for s in self.standings if s.state == state]:
                told.append(f"{self._of_all(len(found), bool(told))} {_is(found)} {state}: {_by_round(found)}.")
        more = bool(told)
        if not told:
            told = ["No client was excluded" + (", and none stood out." if not (self.standings or alike) else ".")]
        told += alike
        in_doubt = self.of("on trial", "skipped")
        tried, skipped = [s for s in in_doubt if s.tried], [s for s in in_doubt if not s.tried]
        for found, what in ((tried, "in doubt"), (skipped, "skipped")):
            if found:
                told.append(f"{self._of_all(len(found), more)} {_was(found)} {what}: {self._by_turns(found)}.")
                more = True
        if stood := self.of("stood out"):
            told.append(f"{self._of_all(len(stood), more)} stood out: {self._by_count(stood)}.")
        if self.cut:
            told.append(f"Weights that a client alone moved were left out: {self._by_rounds(self.cut)}.")
        return told

    def closing(self, run: int, done: bool = True) -> list[str]:
        """What is said last, to the operator: which clients are different without harm shown, and what to do."""
        found = [s for s in self.standings if s.different is not None]
        told = [
            harm_not_shown(s.client, s.different, None if done else run)
            for s in found[:NAMED]
            if s.different is not None
        ]
        more = len(found) - NAMED
        return told + ([f"So {'is' if more == 1 else 'are'} {more} more: fedwarden show {run}"] if more > 0 else [])

    def _of_all(self, n: int, more: bool) -> str:
        return f"{n} more" if more else f"{n} of {count(self.clients, 'client')}"

    def _by_count(self, found: Sequence[Standing]) -> str:
        return self._by_rounds({s.client: s.flagged for s in found})

    def _by_rounds(self, rounds: Mapping[str, int]) -> str:
        groups: dict[int, list[str]] = {}
        for client in sorted(rounds, key=lambda client: -rounds[client]):
            groups.setdefault(rounds[client], []).append(client)
        return "; ".join(f"{listed(who)} in {k} of {count(self.rounds, 'round')}" for k, who in groups.items())

    def _by_turns(self, found: Sequence[Standing]) -> str:
        """In how many rounds clients were on trial, and in how many they were skipped."""
        groups: dict[str, list[str]] = {}
        for s in sorted(found, key=lambda s: (-s.tried, -s.skipped)):
            on = [f"on trial in {s.tried}"] if s.tried else []
            off = [f"{'skipped ' if s.tried else ''}in {s.skipped}"] if s.skipped else []
            groups.setdefault(" and ".join([*on, *off]), []).append(s.client)
        of = f"of {count(self.rounds, 'round')}"
        told = [f"{listed(clients)} {turns} {of}" for turns, clients in groups.items()]
        rest = sum(len(clients) for clients in list(groups.values())[MOST:])
        return "; ".join([*told[:MOST], *([f"{count(rest, 'client')} in fewer rounds"] if rest else [])])


def verdict(series: Series) -> Verdict:
    """The clients that are excluded or suspended, were in doubt, or stood out in a run."""
    refused = {(t, c) for t, c, _ in series.rejected}
    by_watch = {w.name: w.flagged.sum(axis=0) for w in series.watches.values()}
    doubts, unlike = _doubts(series.notes), different(series)
    found = []
    for j, client in enumerate(series.clients):
        flagged = [(int(series.rounds[i]), i) for i in np.flatnonzero(series.flagged[:, j]).tolist()]
        turns = _turns({t for t, i in flagged if series.weights[i, j] == 0 and (t, client) not in refused},
                       {t: kind for t, (kind, _) in doubts.get(client, {}).items()})  # fmt: skip
        noted = {t for t, _ in flagged} | set(turns)
        out = len(series) > 0 and bool(series.excluded[-1, j])
        if not out and not noted:
            continue
        since = min(noted, default=0)
        if out:
            inside = np.flatnonzero(~series.excluded[:, j])
            since = int(series.rounds[inside[-1] + 1 if len(inside) else 0])
        often = {name: int(k[j]) for name, k in by_watch.items() if k[j]}
        often = dict(sorted(often.items(), key=lambda pair: -pair[1]))
        words = [series.watches[name].words for name in often]
        words += [words for _, words in doubts.get(client, {}).values() if words]
        state = _state(out, client in series.suspended, turns)
        note = None if out else unlike.get(client)
        found.append(
            Standing(client, state, since, len(noted), often, words[0] if words else "", *_counts(turns), note)
        )
    cut = Counter(client for _, note in series.notes if note.kind == "lone_weights" for client in note.clients)
    alike = acting_as_one(series.notes)
    return Verdict(_graver_first(found), len(series.clients), len(series), bool(series.watches), dict(cut), alike)


def acting_as_one(notes: Sequence[tuple[int, Note]]) -> dict[tuple[str, ...], tuple[int, str]]:
    """The groups of clients that sent identical updates: in how many rounds they or some of them did, and what follows.

    >>> some, all_ = Note.of("copies_share", "a", "b"), Note.of("copies_share", "b", "c", "a")
    >>> acting_as_one([(1, some), (2, all_)])
    {('a', 'b', 'c'): (2, 'share one vote')}
    """
    told = [(t, frozenset(note.clients), COPIES[note.kind]) for t, note in notes if note.kind in COPIES]
    groups = {group: follows for _, group, follows in told}
    largest = [group for group in groups if not any(group < other for other in groups)]
    rounds = {whole: len({t for t, group, _ in told if group <= whole}) for whole in largest}
    return {client_order(whole): (rounds[whole], groups[whole]) for whole in largest}


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
        """SELECT round, each.value AS client, json_extract(note, '$.kind') AS kind
        FROM remark JOIN round USING (run, round), json_each(note, '$.clients') AS each
        WHERE run = ? AND about = 'note' AND json_extract(note, '$.kind') IN (?, ?)
            AND each.value IN (SELECT value FROM json_each(round.clients))""",  # and not the name of a group
        run.id,
        *DOUBTS,
    )
    flagged: dict[str, dict[int, float]] = {}
    kinds: dict[str, dict[int, str]] = {}
    for row in flags:
        flagged.setdefault(row["client"], {})[row["round"]] = row["weight"]
    for row in doubts:
        kinds.setdefault(row["client"], {})[row["round"]] = row["kind"]
    found = []
    for client in dict.fromkeys([*record.excluded, *flagged, *kinds]):
        rounds = flagged.get(client, {})
        turns = _turns({t for t, weight in rounds.items() if weight == 0}, kinds.get(client, {}))
        noted = {*rounds, *turns}
        state = _state(client in record.excluded, client in record.suspended, turns)
        counts = _counts(turns)
        found.append(Standing(client, state, min(noted, default=0), len(noted), {}, "", *counts))
    return Verdict(_graver_first(found), len(record.client_ids), run.rounds, bool(record.watches))


def _doubts(notes: Sequence[tuple[int, Note]]) -> dict[str, dict[int, tuple[str, str]]]:
    """The clients in doubt, by round, with the kind of the note that says so and its words."""
    found: dict[str, dict[int, tuple[str, str]]] = {}
    for t, note in notes:
        for client in note.clients if note.kind in DOUBTS else ():
            found.setdefault(client, {})[t] = note.kind, str(note.values.get("words", ""))
    return found


def _turns(absent: Collection[int], kinds: Mapping[int, str]) -> dict[int, bool]:
    """For each round in which a client was in doubt, or flagged and absent, whether it was in the model.

    A client on trial whose update is a copy has no weight of its own.

    >>> _turns({1, 3}, {2: "left_out", 3: "on_trial"})
    {1: False, 2: False, 3: True}
    """
    return {t: kinds.get(t) == "on_trial" for t in sorted({*absent, *kinds})}


def _state(out: bool, suspended: bool, turns: Mapping[int, bool]) -> State:
    if out:
        return "suspended" if suspended else "excluded"
    if not turns:
        return "stood out"
    return "on trial" if turns[max(turns)] else "skipped"


def _counts(turns: Mapping[int, bool]) -> tuple[int, int]:
    tried = sum(turns.values())
    return tried, len(turns) - tried


def turn(record: RoundRecord, client: str) -> State | None:
    """What a client in doubt was in a round: skipped or on trial; None where it was not in doubt."""
    return next((DOUBTS[n.kind] for n in record.notes if n.kind in DOUBTS and client in n.clients), None)


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
