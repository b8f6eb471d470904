"""How a round is judged from its measurements: watches, policy, and what is remembered of each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial, reduce
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError
from ..core.notes import Note
from ..core.protocols import Findings, History, Policy, Rule, Signal
from ..core.registry import Spec, component, describe
from ..core.remembered import Remembered, same_tuple
from ..core.stats import Mask, Scores, Weights, among, scatter, severity
from ..core.types import Reading, State, WatchRecord
from .copies import Leaders, of_leaders
from .limits import Admission

Combine = Literal["any", "all", "vote"]
Kept = Sequence[Reading | None]
"""What is not measured again, by watch."""
Until = Literal["round", "clean", "good"]
"""How long a client that a watch flags is left out: for the round, until it is clean again, or for good."""
AGREED = 0.6  # a round in which clients agree more, beyond what chance gives so few, can prove something
DEEP = 4.0  # times its limit: evidence that does not lapse once training has settled


@dataclass(frozen=True)
class _WatchFields:
    """What a watch holds."""

    signal: Signal
    history: History
    rule: Rule
    start_round: int
    name: str
    optional: bool
    until: Until
    agreeing: bool
    suspects: bool


@dataclass(frozen=True, init=False)
class Watch(_WatchFields):
    """A signal, what is remembered of it, and the rule that judges it; names or tables are looked up.

    Clients are flagged from round ``start_round`` on. An ``optional`` watch needs a server; it takes part once the
    warden is equipped with one that has what it needs. ``until`` says how long its flag counts, where the policy lets
    it count at all. An ``agreeing`` watch decides and remembers only in rounds in which the clients agree: later
    on, each of them is busy with what is left of its own loss, and being different says little. Who comes
    near the threshold of a watch that ``suspects`` is under suspicion, for an aggregator that asks for it.
    """

    def __init__(
        self,
        signal: Spec | Signal,
        history: Spec | History = "raw",
        rule: Spec | Rule = "gesd",
        start_round: int = 2,
        name: str = "",
        optional: bool = False,
        until: Until = "good",
        agreeing: bool = False,
        suspects: bool = False,
    ) -> None:
        if until not in ("round", "clean", "good"):
            raise ConfigError(f"watch {name!r}: until is 'round', 'clean' or 'good'; got {until!r}")
        measure = component("signal", signal)
        super().__init__(
            measure, component("history", history), component("rule", rule), start_round,
            name or describe(measure)["name"], optional, until, agreeing, suspects,
        )  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """How a round is judged; frozen.

    ``remeasure`` measures again without the clients just flagged, so that they do not pull the centre. With
    ``share_copies`` clients that send the same have one vote together. Nobody is flagged while fewer than ``quorum``
    different updates of clients in good standing have come. With a finite ``margin`` nobody is excluded for good unless
    the clients beyond question outnumber the others by more than that, nor where half of all clients that were ever
    seen would be excluded: those flagged are left out of the round. Once the median update is shorter than ``settle``
    times the longest median so far, training has settled: what clients still differ in is noise, so no watch acts but
    those that look :func:`once`, and no update is longer than the median one. Before, updates longer than ``shorten``
    times the median one are shortened to that.
    """

    watches: tuple[Watch, ...]
    policy: Policy
    admission: Admission = field(default_factory=Admission)
    combine: Combine = "any"
    remeasure: bool = False
    share_copies: bool = False
    quorum: int = 1
    margin: float = -math.inf
    settle: float = 0.0
    shorten: float | None = None

    @property
    def spread(self) -> bool:
        """Whether a watch asks for distances to the mean, which the first read of the updates tells at some cost."""
        return any(getattr(watch.signal, "spread", False) for watch in self.watches)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Of each watch, the first one that has the same signal."""
        signals = [watch.signal for watch in self.watches]
        return tuple(signals.index(signal) for signal in signals)

    def settled(self, memory: Memory, length: float) -> bool:
        """Whether training has, in a round whose median update is so long."""
        return length < self.settle * memory.longest

    def blank(self) -> Memory:
        """What a guard remembers before the first round."""
        histories = tuple(w.history.init() for w in self.watches)
        return Memory(histories, (0,) * len(histories), self.policy.init())


@dataclass(frozen=True)
class Memory:
    """What a guard remembers between rounds: plain numbers by client id.

    ``tests`` counts the rounds in which each watch has judged; ``known`` are all clients that were ever seen, where
    that matters; ``longest`` is the longest median update.
    """

    histories: tuple[State, ...]
    tests: tuple[int, ...]
    excluded: Mapping[str, int]
    known: frozenset[str] = frozenset()
    longest: float = 0.0

    @property
    def suspended(self) -> tuple[str, ...]:
        """Of the excluded, those that are still asked."""
        return tuple(client for client, clean in self.excluded.items() if clean >= 0)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the watches and the policy make of one round's measurements.

    Of those ``flagged``, the ``spared`` are left out of this round alone, because too few are beyond question; so are
    the ``doubted``, who count as flagged where the policy leaves them in. ``weak`` are those flagged on weak evidence
    alone; ``trusted`` those in good standing whom no look before had flagged. ``facts`` are of the whole round.
    """

    watches: tuple[WatchRecord, ...]
    flagged: Mask
    doubted: Mask
    trusted: Mask
    weights: Weights = field(default_factory=lambda: np.zeros(0))
    spared: Mask = field(default_factory=lambda: np.zeros(0, bool))
    weak: Mask = field(default_factory=lambda: np.zeros(0, bool))
    facts: Mapping[str, float] = field(default_factory=dict)

    def wide(self, index: Sequence[int] | NDArray[np.int_], n: int) -> tuple[WatchRecord, ...]:
        """The watches' records over all n clients that answered; NaN for those that were not judged."""
        if len(index) == n:
            return self.watches
        return tuple(
            replace(
                w,
                signal=scatter(w.signal, index, n, np.nan),
                scores=scatter(w.scores, index, n, np.nan),
                flagged=scatter(w.flagged, index, n, False),
                parts={name: scatter(part, index, n, np.nan) for name, part in w.parts.items()},
            )
            for w in self.watches
        )


def grown(longest: float, length: float) -> float:
    """The longest median update after one more round, at most twice the one before.

    Where few are asked, attackers may be most of a round: one such round must not make all later ones look settled.
    Several may.

    >>> grown(0.0, 3.0), grown(3.0, 1.0), grown(3.0, 1e9), grown(3.0, math.nan)
    (3.0, 3.0, 6.0, 3.0)
    """
    return max(longest, min(length, 2 * longest if longest else length)) if length == length else longest


def once(watch: Watch) -> bool:
    """Whether this watch looks once at every round, among all clients in good standing, and takes nothing back later.

    Its history says so: what it guarantees holds for one measurement a round, and no round may be picked.
    """
    return bool(getattr(watch.history, "once", False))


def combine_flags(flags: Sequence[Mask], how: Combine) -> Mask:
    """Several watches' flags as one: any of them, all of them, or more than half.

    >>> a, b, c = np.array([True, True]), np.array([True, False]), np.array([False, False])
    >>> [combine_flags([a, b, c], how).tolist() for how in ("any", "all", "vote")]
    [[True, True], [False, False], [True, False]]
    """
    if how == "any":
        return reduce(np.logical_or, flags)
    votes = np.array(flags).sum(axis=0)
    return np.asarray(votes >= (len(flags) if how == "all" else len(flags) // 2 + 1))


def flags_of(rule: Rule, scores: Scores, trusted: Mask, test: int) -> tuple[Mask, float, Note | None]:
    """Whom a rule flags, its threshold and its warning.

    The rule judges the clients in good standing, and its mask counts for them. The others are held against its
    threshold. A score that is not a number cannot be compared, so its client is flagged.
    """
    finite = math.isfinite(scores.dot(scores))  # in half of the time of asking each, and so in most rounds
    judged = trusted if finite else trusted & np.isfinite(scores)
    some = scores[judged]
    verdict = rule(some, test)
    warning = Note.text(verdict.warning) if isinstance(verdict.warning, str) else verdict.warning
    if len(some) == len(scores):
        return verdict.flagged, verdict.threshold, warning
    flagged = scores > verdict.threshold
    flagged[judged] = verdict.flagged
    return flagged if finite else flagged | ~np.isfinite(scores), verdict.threshold, warning


@np.errstate(over="ignore")  # scores from 1e154 on have infinite squares
def look(
    guard: Guard,
    memory: Memory,
    round: int,
    client_ids: tuple[str, ...],
    signals: Sequence[Reading],
    trusted: Mask,
    voters: Mask,
    enough: bool,
    settled: bool,
    before: Judgement,
) -> tuple[Memory, Judgement]:
    """Judge one set of measurements; who was flagged or doubted ``before``, by an earlier look, stays so.

    ``trusted`` are the ``voters`` whom no earlier look has flagged. A guard that does not decide, because training has
    settled, remembers nothing of the round either, but for watches that look once: these only need ``enough`` clients.
    """
    facts = {name: value for signal in signals for name, value in signal.facts.items()}
    agreed = facts.get("agreement", math.inf) > AGREED
    histories, tests, records = [], [], []
    for watch, past, test, signal in zip(guard.watches, memory.histories, memory.tests, signals, strict=True):
        single = once(watch)
        state, scores = _remember(watch.history, past, client_ids, signal.values, voters if single else trusted)
        decides = enough and (single or not settled) and (agreed or not watch.agreeing)
        active = decides and round >= watch.start_round
        above, threshold, warning = flags_of(watch.rule, scores, trusted, test + 1)
        histories.append(state if decides else past)
        tests.append(test + active)
        words = str(getattr(watch.signal, "words", watch.name))
        why = signal.warning or warning
        flagged = above & active
        records.append(WatchRecord(watch.name, signal.values, scores, threshold, flagged, why, signal.parts, words))
    lasting = [r.flagged for r, w in zip(records, guard.watches, strict=True) if w.until != "round"]
    fleeting = [r.flagged for r, w in zip(records, guard.watches, strict=True) if w.until == "round"]
    flagged = before.flagged | combine_flags(lasting, guard.combine) if lasting else before.flagged
    doubted = (before.doubted | combine_flags(fleeting, "any") if fleeting else before.doubted) & ~flagged
    proofs = [r.flagged for r, w in zip(records, guard.watches, strict=True) if w.until == "good"]
    weak = flagged & ~combine_flags([flagged & ~before.weak & before.flagged, *proofs], "any")
    records = [
        replace(r, flagged=r.flagged & doubted) if w.until == "round" and r.flagged.any() else r
        for r, w in zip(records, guard.watches, strict=True)
    ]  # who is flagged for longer is in no doubt
    after = replace(memory, histories=tuple(histories), tests=tuple(tests))
    return after, Judgement(tuple(records), flagged, doubted, trusted, weak=weak, facts=facts)


def conclude(
    guard: Guard,
    before: Memory,
    after: Memory,
    client_ids: tuple[str, ...],
    found: Judgement,
    good: Mask,
    voters: Mask,
    settled: bool,
) -> tuple[Memory, Judgement]:
    """Let the policy act on what was judged, unless the majority that it rests on is too slim.

    A slim majority may be a minority that gathers around one honest client and so makes the others look odd: these are
    left out of the round, and nothing of it is held against them later. In question are those flagged or doubted, and
    who is half way to being flagged. Who is suspended stays so while it is half way to being flagged again, or too few
    take part to tell; once training has settled, who is not far beyond a limit is let in again.
    """
    question = found.flagged | found.doubted
    again = np.full(len(client_ids), not settled and np.count_nonzero(voters) < guard.quorum)
    for watch, record in zip(guard.watches, found.watches, strict=True):
        if watch.until != "round":
            half = record.scores > max(record.threshold / 2, 0.0)
            question = question | half
            if watch.until == "clean":
                again = again | (record.scores > max(DEEP * record.threshold, 0.0) if settled else half)
    known = before.known if before.known.issuperset(client_ids) else before.known.union(client_ids)
    gone = len(before.excluded) + np.count_nonzero(found.flagged & good)
    lead = np.count_nonzero(voters & ~question) - np.count_nonzero(voters & question)
    careful = guard.margin > -math.inf
    slim = careful and (lead <= guard.margin or 2 * gone >= len(known))
    spared = found.flagged & good & slim
    weak = found.weak | (found.flagged & slim)
    far = partial(severity, [record.scores for record in found.watches], found.trusted)
    findings = Findings(client_ids, found.flagged & ~spared, far, found.doubted | spared, weak, again)
    excluded, weights = guard.policy.step(before.excluded, findings)
    names = {client_ids[i] for i in np.flatnonzero(spared).tolist()}
    histories = tuple(
        now if once(watch) else _restored(now, past, names)
        for watch, now, past in zip(guard.watches, after.histories, before.histories, strict=True)
    )
    memory = replace(after, histories=histories, excluded=excluded, known=known if careful else before.known)
    flagged = found.flagged | (found.doubted & (weights > 0))  # who is left in all the same has stood out
    return memory, replace(found, flagged=flagged, weights=weights, spared=spared & (weights == 0), weak=weak)


def judge(
    guard: Guard,
    memory: Memory,
    round: int,
    client_ids: tuple[str, ...],
    leaders: Leaders,
    measure: Callable[[Mask, Kept], Sequence[Scores | Reading]],
    length: float = math.nan,
) -> tuple[Memory, Judgement]:
    """Measure and judge a round; with ``remeasure``, again without those just flagged until nobody new is.

    ``measure`` gives every watch's signal with the centre taken from the clients of a mask, or what is kept of the
    first look: the live guard reads the updates there, a replay what was recorded. ``length`` is the median one of the
    round, where it is known. A copy has the measurements of its leader and no part in what is normal. What it is held
    for is its own evidence: or whoever has gathered some could pass it on by sending what another client sends. Never
    takes half of the clients in good standing out of the reference: who is left must be a majority.
    """
    n, client_ids = len(client_ids), same_tuple(client_ids)
    good = ~among(memory.excluded, client_ids)
    leads = leaders == np.arange(n)
    voters, copies = good & leads, not leads.all()
    enough, settled = bool(np.count_nonzero(voters) >= guard.quorum), guard.settled(memory, length)
    memory = replace(memory, longest=grown(memory.longest, length) if enough else memory.longest)
    nobody = np.zeros(n, bool)
    before, last = Judgement((), nobody, nobody, nobody, weak=nobody), None
    kept: Kept = [None] * len(guard.watches)
    while True:
        trusted = voters & ~before.flagged
        readings = [s if isinstance(s, Reading) else Reading(s) for s in measure(trusted, kept)]
        signals = [
            of_leaders(r, leaders, getattr(w.signal, "weights_only", False)) if copies else r
            for r, w in zip(readings, guard.watches, strict=True)
        ]
        kept = [signal if once(watch) else None for watch, signal in zip(guard.watches, signals, strict=True)]
        new = look(guard, memory, round, client_ids, signals, trusted, voters, enough, settled, before)
        found = new[1].flagged & voters
        if last is not None and 2 * np.count_nonzero(found) >= np.count_nonzero(voters):
            break
        last = new
        if not guard.remeasure or (found == voters & ~trusted).all():
            break
        before = replace(new[1], flagged=new[1].flagged & good, doubted=new[1].doubted & good)
    return conclude(guard, memory, last[0], client_ids, last[1], good, voters, settled)


def _remember(
    history: History, past: State, client_ids: tuple[str, ...], values: Scores, trusted: Mask
) -> tuple[State, Scores]:
    """What a history makes of a round; a value that is no number is remembered as the largest one, with a score of NaN.

    Its client is flagged for it in this round. Remembered as it is, it would stay so for ever.
    """
    odd = ~np.isfinite(values)
    if not odd.any():
        return history.step(past, client_ids, values, trusted)
    state, scores = history.step(past, client_ids, np.where(odd, values[~odd].max(initial=0.0), values), trusted)
    return state, np.where(odd, np.nan, scores)


def _restored(now: State, past: State, client_ids: set[str]) -> State:
    """A history in which these clients stand as they did before."""
    if not client_ids:
        return now
    if isinstance(now, Remembered):
        return now.restored(past, client_ids)
    return {c: value for c, value in now.items() if c not in client_ids} | {c: past[c] for c in client_ids if c in past}
