"""What became of each client in one round, and the one reason why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from ..core.notes import DOUBTS, GROUPS_PROVE, Note
from ..core.stats import robust_z
from ..core.types import RoundRecord, WatchRecord
from ..core.words import listed, number, spelt
from .series import client_order
from .word import NOTES, UNSAID

State = Literal["excluded", "suspended", "skipped", "on trial", "rejected", "down-weighted", "in the model"]
STATES: tuple[State, ...] = get_args(State)
OUT: tuple[State, ...] = ("excluded", "suspended")
FURTHER = frozenset({"answered_twice", "model_gone"})  # another reply is refused; the one in time counts
COPIES = {"copies_share": "share one vote", "copies_as_one": "are judged as one"}
"""What follows for clients that sent identical updates, by the kind of their note."""
IDENTICAL = {**COPIES, "copies_apart": "each count in full"}
PLAIN = 3.0  # robust deviations within which a signal says little by itself
ALIKE = 0.05  # clients whose weights differ by less are weighed alike
LESS = 0.5  # of what the median client in the model counts: a client that counts less is down-weighted


@dataclass(frozen=True)
class Flag:
    """What one watch saw of a client: how far out its signal is, in MADs, and the part where it is farthest.

    Measured harm puts a client in doubt ``below`` the limit from which it is proven.
    """

    watch: str
    words: str
    score: float
    limit: float
    height: float
    part: str = ""
    below: bool = False

    def __str__(self) -> str:
        if math.isnan(self.height):
            return f"its {self.watch} is not a number"
        side = f"{abs(self.height):.0f} MADs {'above' if self.height >= 0 else 'below'} the median"
        out = "gathered over rounds" if self.below or abs(self.height) < PLAIN else side
        limit = f"{'proven above' if self.below else 'limit'} {number(self.limit)}"
        where = f", most in {self.part}" if self.part else ""
        return f"{self.words} ({self.watch} {number(self.score)}, {limit}, {out}){where}"


@dataclass(frozen=True)
class Reason:
    """What became of a client in a round and why: what watches saw of it, or else ``words``, and how it differs.

    ``str`` is the one sentence about it, wherever it is told; empty where nothing kept the client from counting as it
    came.

    >>> print(Reason("a", "excluded", 3, words="operator alice: maintenance"))
    Client a was excluded in round 3: operator alice: maintenance.
    """

    client: str = ""
    state: State | Literal["flagged"] = "in the model"
    round: int = 0
    flags: tuple[Flag, ...] = ()
    words: str = ""
    differences: tuple[str, ...] = ()

    def __str__(self) -> str:
        told = [*map(str, self.flags)] or [self.words]
        why = "; ".join(filter(None, [*told, *self.differences])).rstrip(".")
        return why and f"Client {self.client} was {self.state} in round {self.round}: {why}."


class RoundStory:
    """The state of every client in a round, and why."""

    def __init__(self, record: RoundRecord) -> None:
        self.record = record

    @cached_property
    def states(self) -> dict[str, State]:
        """Every client that answered, was rejected or is excluded."""
        record = self.record
        everybody = dict.fromkeys((*record.client_ids, *self.refused, *record.excluded))
        out, held = frozenset(record.excluded), frozenset(record.suspended)
        return {c: ("suspended" if c in held else "excluded") if c in out else self.turn(c) for c in everybody}

    def turn(self, client: str) -> State:
        """A client's state as far as it hangs on this round alone."""
        if client in self.refused:
            return "rejected"
        if client in self.in_doubt:
            return self.in_doubt[client]
        if client not in self.inside:
            return "skipped"
        less = client not in self.copies and self.shares[self.place[client]] < LESS
        return "down-weighted" if less else "in the model"

    def reason(self, client: str) -> Reason:
        """Why a client is not in the model as it came, empty where it is.

        >>> moved = np.array([0.1, 0.2, 0.1, 0.2, 2.0])
        >>> layers = {"layer 1": moved, "layer 2": -moved}
        >>> watch = WatchRecord("far", moved, moved, 1.0, moved > 1, None, layers, "it moved")
        >>> print(RoundStory(RoundRecord(3, tuple("abcde"), np.ones(5), np.ones(5), (watch,), moved > 1)).reason("e"))
        Client e was flagged in round 3: it moved (far 2, limit 1, 18 MADs above the median), most in layer 1.
        """
        state, doubt, at = self.states.get(client, "in the model"), self.doubts.get(client), self.place.get(client)
        made = Reason(client, state, self.record.round)
        for note in self.record.notes:
            if client in note.clients and note.kind in DECIDED:
                return replace(made, words=DECIDED[note.kind](note))
        if client in self.refused and state not in OUT:
            return replace(made, words=str(self.refused[client]))
        told = {} if doubt is None else doubt.values
        named = watches if isinstance(watches := told.get("watches"), tuple) else ()
        proven = bool(named and told.get("harmful"))  # in doubt below the limit, see Flag
        seen = [w for w in self.record.watches if at is not None and (w.flagged[at] or proven)]
        flags = tuple(_flag(w, at) for w in seen if at is not None and (w.name in named or not named))
        if doubt is not None:
            words = str(told.get("words") or "it is in doubt")
            return replace(made, flags=flags, words=words, differences=tuple(_differences(told)))
        if flags:
            return replace(made, state="flagged" if state == "in the model" else state, flags=flags)
        return replace(made, words=self._otherwise(client))

    def _otherwise(self, client: str) -> str:
        """Why a client that no watch flagged is in its state."""
        state = self.states.get(client)
        if state in OUT:
            return "no watch flagged it"
        if state == "skipped":
            return "the aggregator left its update out" if self.inside else "no update is in the model of this round"
        if state == "down-weighted":
            share = self.shares[self.place[client]]
            return f"its weight is {share:.2g} times that of the median client"
        others = [other for other in self.copies.get(client, ()) if other != client]
        return f"it shares one vote with {listed(others)}, since their updates are identical" if others else ""

    def watched(self, client: str, watches: Sequence[str]) -> dict[str, tuple[float, float]]:
        """A client's score by each watch, and the threshold; NaN where a watch has none."""
        found, at = {w.name: w for w in self.record.watches}, self.place[client]
        some = {name: (float(found[name].scores[at]), found[name].threshold) for name in watches if name in found}
        return dict.fromkeys(watches, (math.nan, math.nan)) | some

    @cached_property
    def place(self) -> dict[str, int]:
        return {c: i for i, c in reversed([*enumerate(self.record.client_ids)])}  # of two replies the first counts

    @cached_property
    def flagged(self) -> set[str]:
        return {c for c, flag in zip(self.record.client_ids, self.record.flagged.tolist(), strict=False) if flag}

    @cached_property
    def refused(self) -> dict[str, Note]:
        """The clients of which no reply counts, and why."""
        return {r.client_id: r.reason for r in self.record.rejected if r.reason.kind not in FURTHER}

    @cached_property
    def doubts(self) -> dict[str, Note]:
        return {c: note for note in self.record.notes if note.kind in DOUBTS for c in note.clients}

    @cached_property
    def in_doubt(self) -> dict[str, State]:
        """The clients in doubt: skipped or on trial."""
        return {c: DOUBTS[note.kind] for c, note in self.doubts.items()}

    @cached_property
    def copies(self) -> dict[str, tuple[str, ...]]:
        """The group of each client that has its part in the model by another one's identical update."""
        found: dict[str, tuple[str, ...]] = {}
        for note in self.record.notes:
            if note.kind in COPIES:
                group = client_order(note.clients)
                led = note.kind == "copies_share"
                found |= {c: group for c in group if led or self.weights.get(c, 0.0) == 0}
        return found

    @cached_property
    def weights(self) -> dict[str, float]:
        return {c: float(self.record.weights[i]) for c, i in self.place.items()}

    @cached_property
    def inside(self) -> set[str]:
        """The clients whose update is in the model: by a weight of its own, or of an identical update."""
        own = {c for c, weight in self.weights.items() if weight > 0}
        groups = (note.clients for note in self.record.notes if note.kind in COPIES)
        return own.union(*(group for group in groups if own & set(group)))

    @cached_property
    def shares(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """How much each client counts compared with the median client in the model.

        Weights are compared as they are or by example, whichever way most clients count alike: an aggregator may weigh
        all clients the same, or by their examples.
        """
        inside = self.record.weights > 0
        ways = []
        for each in (self.record.weights, self.record.weights / np.maximum(self.record.num_examples, 1e-300)):
            share = each / float(np.median(each[inside])) if inside.any() else each
            ways.append((int((np.abs(share[inside] - 1) > ALIKE).sum()), share))
        return min(ways, key=lambda way: way[0])[1]


def advice(client: str, note: Note, run: int | None = None) -> str:
    """What the operator can do about a client in doubt, whose last note of doubt this is; empty if harm was measured.

    ``run`` is one that goes on, in which the client can be trusted; without it, that is for the next one.

    >>> print(advice("a", Note.of("on_trial", "a"), 7))
    Client a is different, harm not shown. If you know why it differs, run `fedwarden trust 7 a`.
    """
    if note.values.get("harmful"):
        return ""
    trust = f"give the guard of the next run trusted = [{client!r}]"
    trust = trust if run is None else f"run `fedwarden trust {run} {spelt(client)}`"
    return f"Client {client} is different, harm not shown. If you know why it differs, {trust}."


def by_operator(note: Note) -> str:
    """Which operator said so and why; a ledger may come from anywhere.

    >>> by_operator(Note.of("word_excluded", "a", by="operator alice", reason="maintenance"))
    'operator alice: maintenance'
    """
    return f"{note.values.get('by', 'an operator')}: {note.values.get('reason', UNSAID)}"


DECIDED: Mapping[str, Callable[[Note], str]] = {
    NOTES["exclude"]: by_operator,
    NOTES["suspend"]: by_operator,
    "groups_prove": lambda _: GROUPS_PROVE,
}
"""Kinds of notes that say by themselves why a client is out, each with the words for it."""


def _differences(values: Mapping[str, object]) -> Iterator[str]:
    """What differs besides what its watches saw, as far as it was found."""
    layer, share, usual = (values.get(name) for name in ("layer", "share", "usual"))
    if isinstance(share, float) and isinstance(usual, float):
        where = f"layer {layer}" if isinstance(layer, str) else f"part {layer} of {values.get('layers')} of the model"
        yield f"{100 * share:.0f} % of its deviation lies in {where}, where the median client has {100 * usual:.0f} %"
    for verb in ("teaches", "unlearns"):
        classes = values.get(verb)
        if isinstance(classes, Sequence) and len(classes):
            word = "classes" if len(classes) > 1 else "class"
            yield f"it {verb} {word} {listed([str(c) for c in classes])}, which hardly any other client does"
    if values.get("lone"):
        yield "weights that it alone moves lead to one class, as those of a backdoor do, and are left out"


def _flag(watch: WatchRecord, i: int) -> Flag:
    part = max(watch.parts, key=lambda part: _height(watch.parts[part], i)) if watch.parts else ""
    score, height = float(watch.scores[i]), _height(watch.signal, i)
    return Flag(watch.name, watch.words, score, watch.threshold, height, part, not watch.flagged[i])


def _height(values: np.ndarray[tuple[int], np.dtype[np.float64]], i: int) -> float:
    """A client's robust z among the clients that have a value; capped, as equal values have no spread."""
    sound = np.isfinite(values)
    if not sound[i]:
        return math.nan
    return float(np.clip(robust_z(values[sound])[int(sound[:i].sum())], -999, 999))
