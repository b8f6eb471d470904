"""One value that tells a run, the same everywhere: each client's state, since when, and the one reason why.

Whatever shows a run asks one :class:`Story` for it, which works out what is asked for and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, get_args

import numpy as np

from ..core.notes import DOUBTS, Note
from ..core.reported import COSINE
from ..core.types import RoundRecord
from ..core.words import count, listed
from .health import Contribution, Health, agreement, at_odds, contributions, healths
from .round import COPIES, FURTHER, IDENTICAL, OUT, Reason, RoundStory, State, advice
from .series import Series, client_order
from .word import NOTES

Verdict = Literal["excluded", "suspended", "skipped", "on trial", "flagged"]
"""The gravest that became of a client: excluded or suspended as the run ended; in doubt, or flagged and left out, and
skipped or on trial in the last round of that; flagged, and no more than that."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
GROUPS = ("excluded", "suspended", "in doubt", "skipped", "flagged")
IN: State = "in the model"
TOLD = (*DOUBTS, *IDENTICAL, "lone_weights", "suspended", "for_good", *NOTES.values())
"""Kinds of notes that say no more than is shown without them."""
HELD = ("suspended", NOTES["suspend"])
FOR_GOOD = (NOTES["exclude"], "for_good", "groups_prove")
CLEARED = (NOTES["trust"], NOTES["readmit"])  # what the operator says that ends a doubt
RECENT = 10  # last rounds of a client, which tell whether it is different, and whether it ended up in the model
MOST = 6  # groups of clients that a sentence names
EACH = 40  # clients of a group that act as one
NAMED = 3  # clients that are different that a closing line is about, each


@dataclass(frozen=True)
class Standing:
    """A client that is worth a word: its verdict, since which round, and in how many rounds it was flagged or in doubt.

    ``tried`` counts the rounds in which it was on trial, and ``skipped`` those in which it was flagged or in doubt and
    not in the model; ``last`` is the last of them, or the last in which it was flagged.
    """

    client: str
    verdict: Verdict
    since: int
    flagged: int
    tried: int = 0
    skipped: int = 0
    last: int = 0

    @classmethod
    def of(
        cls, client: str, flagged: Mapping[int, bool], doubts: Mapping[int, str], state: State | None, since: int | None
    ) -> Standing:
        """From the rounds in which a client was flagged, and whether it was absent then, and the kinds of its doubts.

        ``state`` is "excluded" or "suspended" where it is out, ``since`` a round. A client on trial whose update is a
        copy has no weight of its own.

        >>> print(Standing.of("a", {1: True, 3: True}, {2: "left_out", 3: "on_trial"}, None, None))
        on trial in 1 round, skipped in 2
        """
        absent = {t for t, away in flagged.items() if away}
        turns = {t: doubts.get(t) == "on_trial" for t in sorted({*absent, *doubts})}
        last: Verdict = "flagged" if not turns else "on trial" if turns[max(turns)] else "skipped"
        noted = {*flagged, *turns}
        verdict: Verdict = "suspended" if state == "suspended" else "excluded" if state else last
        first = min(noted, default=0) if since is None else since
        tried = sum(turns.values())
        return cls(client, verdict, first, len(noted), tried, len(turns) - tried, max(turns or noted, default=0))

    @property
    def out(self) -> bool:
        """Whether it is out of the model for more than single rounds."""
        return self.verdict in OUT

    @property
    def group(self) -> str:
        """The word under which it is counted: one that was ever on trial is in doubt, skipped or not."""
        return self.verdict if self.out or self.verdict == "flagged" else "in doubt" if self.tried else "skipped"

    @property
    def turns(self) -> str:
        """In how many rounds it was on trial, and in how many skipped or flagged."""
        if not self.tried:
            return f"in {self.skipped or self.flagged}"
        return f"on trial in {self.tried}" + (f" and skipped in {self.skipped}" if self.skipped else "")

    def __str__(self) -> str:
        """What became of it in words.

        >>> print(Standing("7", "skipped", 3, 9, tried=7, skipped=2), Standing("7", "flagged", 3, 1), sep="; ")
        on trial in 7 rounds, skipped in 2; flagged in 1 round
        """
        if self.out:
            return f"{self.verdict} since round {self.since}"
        if self.tried:
            also = f", skipped in {self.skipped}" if self.skipped else ""
            return f"on trial in {count(self.tried, 'round')}{also}"
        return f"{self.verdict} in {count(self.skipped or self.flagged, 'round')}"


@dataclass(frozen=True)
class Client:
    """One client as the run ended for it; ``last`` is its last round, with or without a sound reply.

    Scores and thresholds are those of the last round that it took part in.
    """

    client: str
    rounds: int
    state: State
    weight: float
    scores: Mapping[str, float]
    thresholds: Mapping[str, float]
    rejected: Mapping[int, Note]
    last: int = 0
    standing: Standing | None = None

    @property
    def near(self) -> dict[str, float]:
        """How near its score is to each watch's limit, as a share of that, the nearest first."""
        found = {
            w: score / self.thresholds[w]
            for w, score in self.scores.items()
            if np.isfinite(score) and np.isfinite(self.thresholds[w]) and self.thresholds[w] > 0
        }
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))


@dataclass(frozen=True, eq=False)
class Story:
    """A run told from its arrays.

    ``full`` gives a round with all of the watches that ``watches`` names; the series may have fewer.

    >>> flags = np.array([True, False])
    >>> record = RoundRecord(1, ("a", "b"), np.ones(2), np.array([0.0, 1.0]), flagged=flags, excluded=("a",))
    >>> print(Story.of([record]))
    1 of 2 clients is excluded: a since round 1.
    """

    series: Series
    full: Callable[[int], RoundRecord]
    watches: tuple[str, ...]

    @classmethod
    def of(cls, records: Sequence[RoundRecord]) -> Story:
        """From all rounds."""
        rounds, series = {record.round: record for record in records}, Series.of(records)
        return cls(series, rounds.__getitem__, tuple(series.watches))

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """The clients that are excluded or suspended, were in doubt, or were flagged, the gravest first."""
        series = self.series
        refused = {(t, c) for t, c, reason in series.rejected if reason.kind not in FURTHER}
        doubts: dict[str, dict[int, str]] = {}
        for t, note in series.notes:
            for client in note.clients if note.kind in DOUBTS else ():
                doubts.setdefault(client, {})[t] = note.kind
        found = []
        for j, client in enumerate(series.clients):
            rows = np.flatnonzero(series.flagged[:, j]).tolist()
            flagged = {int(series.rounds[i]): bool(series.weights[i, j] == 0) for i in rows}
            flagged = {t: away and (t, client) not in refused for t, away in flagged.items()}
            out = len(series) > 0 and bool(series.excluded[-1, j])
            if not (out or flagged or client in doubts):
                continue
            inside = np.flatnonzero(~series.excluded[:, j])
            since = int(series.rounds[inside[-1] + 1 if len(inside) else 0]) if out else None
            state: State | None = ("suspended" if client in series.suspended else "excluded") if out else None
            if since is not None and state == "excluded":
                named = [(t, note.kind) for t, note in series.notes if t >= since and client in note.clients]
                if any(kind in HELD for _, kind in named):  # it was suspended first
                    since = max((t for t, kind in named if kind in FOR_GOOD), default=since)
            found.append(Standing.of(client, flagged, doubts.get(client, {}), state, since))
        found.sort(key=lambda s: (VERDICTS.index(s.verdict), s.since if s.out else -s.flagged))
        return {standing.client: standing for standing in found}

    @cached_property
    def clients(self) -> dict[str, Client]:
        """Every client; a round in which its only reply was rejected is not taken part in."""
        series = self.series
        place, row = ({x: i for i, x in enumerate(xs)} for xs in (series.clients, series.rounds.tolist()))
        took = ~np.isnan(series.weights)
        rejected: dict[str, dict[int, Note]] = {c: {} for c in series.clients}
        asked = {c: int(np.flatnonzero(took[:, j])[-1]) for c, j in place.items() if took[:, j].any()}
        for t, c, reason in series.rejected:
            rejected[c][t] = reason
            took[row[t], place[c]] &= series.weights[row[t], place[c]] > 0 or reason.kind in FURTHER
            asked[c] = max(asked.get(c, 0), row[t])
        found = {}
        for j, client in enumerate(series.clients):
            round = self._full(int(series.rounds[asked[client]])) if client in asked else None
            weight = 0.0 if round is None else round.weights.get(client, 0.0)
            state: State = "skipped" if round is None else round.turn(client)
            if len(series) and series.excluded[-1, j]:
                state = "suspended" if client in series.suspended else "excluded"
            seen = np.flatnonzero(took[:, j])
            watched = self._full(int(series.rounds[seen[-1]])).watched(client, self.watches) if len(seen) else {}
            found[client] = Client(
                client=client,
                rounds=len(seen),
                state=state,
                weight=0.0 if state in ("excluded", "rejected") else weight,
                scores={watch: score for watch, (score, _) in watched.items()},
                thresholds={watch: limit for watch, (_, limit) in watched.items()},
                rejected=rejected[client],
                last=0 if round is None else round.record.round,
                standing=self.standings.get(client),
            )
        return found

    def reason(self, client: str) -> Reason:
        """The one reason of a client: of the round it is out since, of its last doubt or flag, or of its last round."""
        standing, now = self.standings.get(client), self.clients[client]
        t = now.last
        if standing and (standing.out or now.state not in ("rejected", "down-weighted")):
            t = standing.since if standing.out else self._began(client, standing.last)
        return self._full(t).reason(client) if t else Reason()

    def _began(self, client: str, t: int) -> int:
        """The round in which a suspension began that a client was under in a round; else this round."""
        row, out = self.series.rounds.tolist().index(t), self.series.excluded[:, self.series.clients.index(client)]
        while row and out[row - 1 : row + 1].all():
            row -= 1
        return int(self.series.rounds[row])

    @cached_property
    def _full(self) -> Callable[[int], RoundStory]:
        return cache(lambda t: RoundStory(self.full(t)))

    def told(self, client: str, run: int | None = None) -> str:
        """The reason, and what the operator can do about a client that is different; ``run`` is one that goes on."""
        note = self.different.get(client)
        return " ".join(filter(None, [str(self.reason(client)), advice(client, note, run) if note else ""]))

    @cached_property
    def different(self) -> dict[str, Note]:
        """The clients that are in doubt now, or were in half of their last rounds, with the note of their last doubt.

        Harm that was measured in one of these rounds, and what the operator says of a client, take it off the list, as
        does an exclusion.
        """
        series, doubts = self.series, dict[str, dict[int, Note]]()
        for t, note in series.notes:
            for client in note.clients:
                if note.kind in DOUBTS:
                    doubts.setdefault(client, {})[t] = note
                elif note.kind in CLEARED:
                    doubts.pop(client, None)
        found = {}
        for j, client in enumerate(series.clients):
            if client not in doubts or series.excluded[-1, j]:
                continue
            took = series.rounds[~np.isnan(series.weights[:, j])][-RECENT:].tolist()
            seen = [doubts[client][t] for t in took if t in doubts[client]]
            now = bool(took) and took[-1] in doubts[client]
            if seen and (now or 2 * len(seen) >= len(took)) and not any(note.values.get("harmful") for note in seen):
                found[client] = seen[-1]
        return found

    @cached_property
    def as_one(self) -> dict[tuple[str, ...], tuple[int, str]]:
        """The groups of clients that sent identical updates: in how many rounds they or some did, and what follows."""
        told = [(t, frozenset(n.clients), IDENTICAL[n.kind]) for t, n in self.series.notes if n.kind in IDENTICAL]
        groups = {group: follows for _, group, follows in told}
        largest = [group for group in groups if not any(group < other for other in groups)]
        rounds = {whole: len({t for t, group, _ in told if group <= whole}) for whole in largest}
        return {client_order(whole): (rounds[whole], groups[whole]) for whole in largest}

    @cached_property
    def left_out(self) -> dict[str, int]:
        """In how many rounds an aggregator gave a client no weight that nothing else kept out, most often first."""
        series, row = self.series, {int(t): i for i, t in enumerate(self.series.rounds)}
        combined = (series.weights > 0).any(axis=1, keepdims=True)
        out = (series.weights == 0) & combined & ~series.flagged & ~series.excluded
        told = [(t, c) for t, note in series.notes if note.kind in (*DOUBTS, *COPIES) for c in note.clients]
        place = {client: j for j, client in enumerate(series.clients)}
        for t, client in (*told, *((t, c) for t, c, _ in series.rejected)):
            if client in place:
                out[row[t], place[client]] = False
        counts = Counter(dict(zip(series.clients, out.sum(axis=0).tolist(), strict=True)))
        return {client: k for client, k in counts.most_common() if k}

    @cached_property
    def health(self) -> dict[str, Health]:
        return healths(self.series)

    @cached_property
    def contributions(self) -> dict[str, Contribution]:
        """How much each client helps the model, where it was measured on the server's samples."""
        return contributions(self.series)

    def contribution(self, client: str) -> Contribution | None:
        """One client's, or else what the way of its updates says; None where neither was measured."""
        cosines = self.series.reported.get(COSINE)
        if client in self.contributions or cosines is None or client not in self.series.clients:
            return self.contributions.get(client)
        return agreement(cosines[:, self.series.clients.index(client)])

    def at_odds(self, client: str) -> str:
        return at_odds(self.series, client, self.contribution(client))

    def metric(self, name: str) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """The values of a metric, of the rounds that have one."""
        values = self.series.metrics.get(name, np.zeros(0))
        return values[np.isfinite(values)]

    @property
    def judged(self) -> bool:
        return bool(self.watches)

    @property
    def gone(self) -> set[str]:
        """The clients that are excluded, suspended or were in doubt."""
        return {s.client for s in self.standings.values() if s.verdict != "flagged"}

    def warnings(self, every: bool = True) -> dict[Note, list[int]]:
        """The guard's notes, each once with its rounds; not ``every`` leaves out those that say nothing new."""
        return distinct_notes((t, note) for t, note in self.series.notes if every or note.kind not in TOLD)

    def __str__(self) -> str:
        return " ".join(self.sentences)

    @property
    def short(self) -> str:
        """In a few words, for a column."""
        of: dict[str, list[str]] = {}
        for s in self.standings.values():
            of.setdefault(s.verdict, []).append(s.client)
        told = [f"{len(group)} act as one: {listed(group, most=4)}" for group in self.as_one]
        told += [f"{listed(clients, most=4)} {verdict}" for verdict, clients in of.items()]
        return "; ".join(told) or ("none" if self.judged else "not judged")

    @property
    def sentences(self) -> list[str]:
        """What is said of the clients, in the order of gravity."""
        rounds, of = count(len(self.series), "round"), dict[str, list[Standing]]()
        for s in self.standings.values():
            of.setdefault(s.group, []).append(s)
        told = [
            f"Clients {listed(group, EACH)} act as one: they sent identical updates in {k} of {rounds} and {follows}."
            for group, (k, follows) in list(self.as_one.items())[:MOST]
        ]
        words = {client: f"in {k} of {rounds}" for client, k in self.left_out.items()}
        also = [f"The aggregator left out clients that were not flagged: {_grouped(words)}."] if words else []
        if not self.judged and not of:
            why = "No watch was set" if np.isfinite(self.series.examples).any() else "No reply could be used"
            return [*told, f"{why}, so no client was judged.", *also]
        if not of.keys() & {*OUT}:
            told.append(f"No client was excluded{'' if of or told else ', and none was flagged'}.")
        for k, what in enumerate(w for w in GROUPS if w in of):
            n, past = len(of[what]), what not in OUT
            who = f"{n} more" if k else f"{n} of {count(len(self.series.clients), 'client')}"
            verb = ("was" if past else "is") if n == 1 else ("were" if past else "are")
            turns = sorted(of[what], key=lambda s: (-s.tried, -(s.skipped or s.flagged)) if past else (s.since, 0))
            words = {s.client: f"{s.turns} of {rounds}" if past else f"since round {s.since}" for s in turns}
            told.append(f"{who} {verb} {what}: {_grouped(words)}.")
        cut = Counter(client for _, note in self.series.notes if note.kind == "lone_weights" for client in note.clients)
        if cut:
            often = {client: f"in {k} of {rounds}" for client, k in cut.most_common()}
            told.append(f"Weights that a client alone moved were left out: {_grouped(often)}.")
        return [*told, *also]

    def closing(self, run: int, done: bool = True) -> list[str]:
        """What is said last, to the operator: which clients are different without harm shown, and what to do."""
        found = [client for client in self.standings if client in self.different]
        told = [self.told(client, None if done else run) for client in found[:NAMED]]
        more = len(found) - NAMED
        rest = f"{count(more, 'more client')} {'is' if more == 1 else 'are'} different: fedwarden show {run}"
        return told + ([rest] if more > 0 else [])


def distinct_notes(notes: Iterable[tuple[int, Note]]) -> dict[Note, list[int]]:
    """The first of all notes of (round, note) that have a topic, with the rounds in which the topic came up.

    >>> few, fewer = (Note.of("no_usable_reply", rejected=n) for n in (3, 5))
    >>> {str(note): rounds for note, rounds in distinct_notes([(1, few), (2, fewer)]).items()}
    {'no usable reply (3 rejected); the model is kept': [1, 2]}
    """
    found: dict[Note, tuple[Note, list[int]]] = {}
    for t, note in notes:
        found.setdefault(note.topic, (note, []))[1].append(t)
    return dict(found.values())


def rounds_by_note(notes: Iterable[tuple[int, Note]]) -> dict[Note, list[int]]:
    """Every note of (round, note) once, with its rounds."""
    found: dict[Note, list[int]] = {}
    for t, note in notes:
        found.setdefault(note, []).append(t)
    return found


def _grouped(words: Mapping[str, str]) -> str:
    """What is said of clients, those of which the same is said together.

    >>> _grouped({"a": "in 2 of 3 rounds", "b": "in 1 of 3 rounds", "c": "in 2 of 3 rounds"})
    'a and c in 2 of 3 rounds; b in 1 of 3 rounds'
    """
    of: dict[str, list[str]] = {}
    for client, told in words.items():
        of.setdefault(told, []).append(client)
    rest = sum(len(clients) for clients in list(of.values())[MOST:])
    named = [f"{listed(clients)} {told}" for told, clients in list(of.items())[:MOST]]
    return "; ".join([*named, *([f"{count(rest, 'more client')}"] if rest else [])])
