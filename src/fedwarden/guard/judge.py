"""How a round is judged from its measurements: watches, policy, and what is remembered of each client."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import ConfigError, returned
from ..core.notes import Note
from ..core.protocols import CompleteHistory, CompletePolicy, CompleteSignal, Findings, History, Rule, Signal
from ..core.registry import Spec, component, describe
from ..core.remembered import Remembered
from ..core.stats import Mask, Scores, Weights, among, scatter, severity
from ..core.types import Reading, State, Verdict, WatchRecord
from ..history.capital import Capital
from ..rules.ville import Ville, ville_threshold
from .containment import KNOWN, newcomers_share
from .copies import Leaders, of_leaders
from .jury import Hearings, drawn_pair, turns_of
from .limits import Admission
from .population import Population

Combine = Literal["any", "all", "vote"]
Action = Literal["contain", "doubt", "exclude"]
"""What a watch's flag asks for: cut weights that the client alone moves, leave the client to the policy as one in
doubt, or exclude it."""
NAMED = ("trusted", "jurors")
"""Fields of a guard that hold clients by name."""


@dataclass(frozen=True)
class _WatchFields:
    """What a watch holds."""

    signal: CompleteSignal
    history: CompleteHistory
    rule: Rule
    start_round: int
    name: str
    optional: bool
    action: Action


@dataclass(frozen=True, init=False)
class Watch(_WatchFields):
    """A signal, what is remembered of it, and the rule that judges it; names or tables are looked up.

    Clients are flagged from round ``start_round`` on. An ``optional`` watch needs a server; it takes part once the
    warden is equipped with one that has what it needs. ``action`` is what its flag asks for: "exclude" excludes the
    client as the policy has it, "doubt" lets the policy decide about this round alone, and "contain" cuts the weights
    that the client alone moves.
    """

    def __init__(
        self,
        signal: Spec | Signal,
        history: Spec | History = "raw",
        rule: Spec | Rule = "gesd",
        start_round: int = 2,
        name: str = "",
        optional: bool = False,
        action: Action = "exclude",
    ) -> None:
        if action not in ("contain", "doubt", "exclude"):
            raise ConfigError(f"watch {name!r}: action is 'contain', 'doubt' or 'exclude'; got {action!r}")
        measure = component("signal", signal)
        super().__init__(
            measure, component("history", history), component("rule", rule), start_round,
            name or describe(measure)["name"], optional, action,
        )  # fmt: skip


@dataclass(frozen=True)
class Guard:
    """How a round is judged; frozen.

    With ``share_copies`` clients that send the same have one vote together. No client is flagged while fewer than
    ``quorum`` different updates of clients in good standing have come. Updates longer than ``shorten`` times the median
    one are shortened to that; clients in doubt have, all together, ``joint`` times the number of clients in median
    lengths instead. With ``newcomers`` false, clients that are hardly known have the weight of one of them together,
    where most of a round is known. No watch acts on a ``trusted`` client. What the ``jurors`` report is believed, see
    :mod:`fedwarden.guard.jury`; if ``paired``, each is sent one of two models. What is drawn at random hangs on
    ``secret``. ``standing`` names a recorded run: who was trusted, excluded or suspended at its end is so from the
    first round of a run on that is recorded beside it.
    """

    watches: tuple[Watch, ...]
    policy: CompletePolicy
    admission: Admission = field(default_factory=Admission)
    combine: Combine = "any"
    share_copies: bool = False
    quorum: int = 1
    shorten: float | None = None
    joint: float | None = None
    newcomers: bool = True
    trusted: frozenset[str] = frozenset()
    jurors: frozenset[str] = frozenset()
    paired: bool = False
    secret: int = 0
    standing: str | None = None

    @property
    def spread(self) -> bool:
        """Whether a watch asks for distances to the mean, which the first read of the updates tells at some cost."""
        return any(watch.signal.spread for watch in self.watches)

    @property
    def pairs(self) -> bool:
        """Whether a watch, or the sharing of copies, asks for the inner products of all updates."""
        return self.share_copies or any(watch.signal.pairs for watch in self.watches)

    @cached_property
    def firsts(self) -> tuple[int, ...]:
        """Of each watch, the first one that has the same signal."""
        signals = [watch.signal for watch in self.watches]
        return tuple(signals.index(signal) for signal in signals)

    def blank(self) -> Memory:
        """What a guard remembers before the first round."""
        histories = tuple(w.history.init() for w in self.watches)
        return Memory(histories, (0,) * len(histories), self.policy.init())


@dataclass(frozen=True)
class Memory:
    """What a guard remembers between rounds: plain numbers by client id.

    ``tests`` counts the rounds in which each watch has judged; ``doubted`` are the clients in doubt, each as of the
    last round that it took part in. ``seen`` counts each client's rounds, where the guard cares, and ``hearings`` are
    for its jurors. ``population`` is what clients did lately that are seen too seldom for that.
    """

    histories: tuple[State, ...]
    tests: tuple[int, ...]
    excluded: Mapping[str, int]
    doubted: frozenset[str] = frozenset()
    seen: State = field(default_factory=dict)
    hearings: Hearings = field(default_factory=Hearings)
    population: Population = field(default_factory=Population)

    @property
    def suspended(self) -> tuple[str, ...]:
        """Of the excluded, those that are still asked."""
        return tuple(client for client, clean in self.excluded.items() if clean >= 0)


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the watches and the policy make of one round's measurements.

    ``flagged`` marks the clients that a watch excludes, ``doubted`` the others that stand out, and ``alone`` those that
    move weights which the others leave as they are. ``trusted`` are the clients that define what is normal, and
    ``freed`` those that no watch may act on, by the operator's word. ``harmful`` are those that measured harm puts in
    doubt. ``facts`` are of the whole round. Where most clients come ``seldom`` no watch doubts any of them.
    """

    watches: tuple[WatchRecord, ...] = ()
    flagged: Mask = field(default_factory=lambda: np.zeros(0, bool))
    doubted: Mask = field(default_factory=lambda: np.zeros(0, bool))
    trusted: Mask = field(default_factory=lambda: np.zeros(0, bool))
    alone: Mask = field(default_factory=lambda: np.zeros(0, bool))
    weights: Weights = field(default_factory=lambda: np.zeros(0))
    facts: Mapping[str, float] = field(default_factory=dict)
    freed: Mask = field(default_factory=lambda: np.zeros(0, bool))
    harmful: Mask = field(default_factory=lambda: np.zeros(0, bool))
    seldom: bool = False

    @property
    def suspects(self) -> Mask:
        """The clients that are flagged or in doubt."""
        return self.flagged | self.doubted

    def select(self, keep: Mask) -> Judgement:
        """What it says of some of the clients."""
        return replace(
            self,
            watches=_each(self.watches, lambda values, fill: values[keep]),
            flagged=self.flagged[keep],
            doubted=self.doubted[keep],
            trusted=self.trusted[keep],
            alone=self.alone[keep],
            weights=self.weights[keep],
            freed=self.freed[keep],
            harmful=self.harmful[keep],
        )

    def wide(self, index: Sequence[int] | NDArray[np.int_], n: int) -> tuple[WatchRecord, ...]:
        """The watches' records over all n clients that answered; NaN for those that were not judged."""
        if len(index) == n:
            return self.watches
        return _each(self.watches, lambda values, fill: scatter(values, index, n, fill))


def _each(watches: Sequence[WatchRecord], change: Callable[[Any, Any], Any]) -> tuple[WatchRecord, ...]:
    """The records with what they say of clients changed; of a client that is not there the second value is told."""
    return tuple(
        replace(
            w,
            signal=change(w.signal, np.nan),
            scores=change(w.scores, np.nan),
            flagged=change(w.flagged, False),
            parts={name: change(part, np.nan) for name, part in w.parts.items()},
        )
        for w in watches
    )


def outnumbered(odd: Mask, good: Mask) -> bool:
    """Whether the clients in good standing that stand out are outnumbered by those that do not, by more than one.

        |good| - 2 |good and odd| > 1

    Attackers below half and one honest client that they gather around may be a majority, but by one at most.

    >>> [outnumbered(np.arange(n) < 2, np.ones(n, bool)) for n in (4, 5, 6)]
    [False, False, True]
    """
    return bool(np.count_nonzero(good) - 2 * np.count_nonzero(good & odd) > 1)


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
    """The clients that a rule flags, its threshold and its warning.

    The rule judges the clients in good standing, and its mask counts for them. The others are held against its
    threshold. A score that is not a number cannot be compared, so its client is flagged.
    """
    finite = np.isfinite(scores)
    judged = trusted & finite
    verdict = rule(scores[judged], test)
    returned(isinstance(verdict, Verdict), "a rule returns a fedwarden.Verdict", verdict)
    fits = isinstance(verdict.warning, Note | str | None)
    returned(fits, "the warning of a Verdict is a sentence, a Note or None", verdict.warning)
    warning = Note.text(verdict.warning) if isinstance(verdict.warning, str) else verdict.warning
    flagged = (scores > verdict.threshold) | ~finite
    flagged[judged] = verdict.flagged
    return flagged, verdict.threshold, warning


def in_good_standing(memory: Memory, client_ids: tuple[str, ...], leaders: Leaders) -> Mask:
    """The clients that are not excluded and send no copy."""
    leads: Mask = leaders == np.arange(len(client_ids))
    return leads & ~among(memory.excluded, client_ids)


def usual(memory: Memory, client_ids: tuple[str, ...], leaders: Leaders) -> Mask:
    """The clients that define what is normal in a round, as is known before it is measured.

    They are those in good standing but for clients in doubt, unless these are half of the others.
    """
    good = in_good_standing(memory, client_ids, leaders)
    trusted = good & ~among(memory.doubted, client_ids)
    return trusted if outnumbered(~trusted, good) else good


@np.errstate(over="ignore")  # scores from 1e154 on have infinite squares
def judge(
    guard: Guard,
    memory: Memory,
    round: int,
    client_ids: tuple[str, ...],
    leaders: Leaders,
    trusted: Mask,
    readings: Sequence[Reading],
    context: Collection[str] = (),
) -> tuple[Memory, Judgement]:
    """Judge a round by each watch's reading of it, with the centre taken from the ``trusted`` clients.

    A copy has the measurements of its leader and no part in what is normal. What it is held for is its own evidence:
    otherwise a client that has gathered some could pass it on by sending what another client sends. A doubt that a slim
    majority raises, see :func:`outnumbered`, holds in this round, and nothing of it is kept. With fewer clients than
    the quorum no client is flagged, and nothing is remembered of the round. Nor is it of the clients that are
    ``context``, whose earlier updates are only compared with.
    """
    n = len(client_ids)
    good = in_good_standing(memory, client_ids, leaders)
    enough = bool(np.count_nonzero(good) >= guard.quorum)
    known = Remembered.of(memory.seen)
    visits = np.full(n, math.inf) if guard.newcomers else known.columns(client_ids, (0.0,))[0]
    seldom = memory.population.few(visits)
    if (leaders != np.arange(n)).any():
        alike = [w.signal.weights_only for w in guard.watches]
        readings = [of_leaders(r, leaders, weights) for r, weights in zip(readings, alike, strict=True)]
    histories, tests, records = [], [], []
    for watch, past, test, signal in zip(guard.watches, memory.histories, memory.tests, readings, strict=True):
        state, scores = _remember(watch.history, past, client_ids, signal, trusted)
        active = enough and round >= watch.start_round and not (seldom and watch.action == "doubt")
        above, threshold, warning = flags_of(watch.rule, scores, trusted, test + 1)
        histories.append(state if enough else past)
        tests.append(test + active)
        words, why = watch.signal.words or watch.name, signal.warning or warning
        flags = above & active
        records.append(WatchRecord(watch.name, signal.values, scores, threshold, flags, why, signal.parts, words))

    def asked(action: Action, how: Combine) -> Mask:
        flags = [r.flagged for r, w in zip(records, guard.watches, strict=True) if w.action == action]
        return combine_flags(flags, how) if flags else np.zeros(n, bool)

    flagged = asked("exclude", guard.combine)
    against, harmful = _harm(guard, histories, client_ids)
    unlike, alone = asked("doubt", "any") & ~flagged, asked("contain", "any")
    doubted = unlike | (harmful & ~flagged)
    far = severity([record.scores for record in records], trusted)
    findings = Findings(client_ids, flagged, far, doubted, round, guard.secret, against, bool(guard.jurors))
    excluded, weights = guard.policy.step(memory.excluded, findings)
    hearings = memory.hearings
    if guard.jurors:
        turns = turns_of(client_ids, guard.policy.chances(excluded, findings), weights)
        pair = drawn_pair(turns, guard.jurors - set(excluded), guard.secret, round) if guard.paired else None
        hearings = replace(hearings, turns=turns, pair=pair)
    lasting, seen = memory.doubted, memory.seen
    over = _lasting(guard, histories, records) & unlike
    if not outnumbered(flagged | doubted, good):
        names = {client_ids[i] for i in np.flatnonzero(doubted & good).tolist()}
        histories = [
            restored(now, past, names) if watch.action == "doubt" else now
            for watch, now, past in zip(guard.watches, histories, memory.histories, strict=True)
        ]
        over = np.zeros(n, bool)
    if enough and (lasting or over.any()):
        lasting = (lasting - set(client_ids)) | {client_ids[i] for i in np.flatnonzero(over).tolist()}
    population = memory.population
    if not guard.newcomers:
        here = np.array([client not in context for client in client_ids], dtype=bool)
        fresh = float(np.mean(visits[here] < KNOWN)) if here.any() else 0.0
        usual = population.fresh if seldom else float(2 * fresh >= 1)
        shares = np.ones(n)
        shares[here] = newcomers_share(visits[here], usual)
        weights, seen = weights * shares, known.updated(client_ids, [visits + 1])
        population = population.after(int(here.sum()), fresh)
    facts = {name: value for reading in readings for name, value in reading.facts.items()}
    return (
        unmoved(Memory(tuple(histories), tuple(tests), excluded, lasting, seen, hearings, population), memory, context),
        Judgement(tuple(records), flagged, doubted, trusted, alone, weights, facts, harmful=harmful, seldom=seldom),
    )


def _harm(guard: Guard, histories: Sequence[State], client_ids: tuple[str, ...]) -> tuple[Scores, Mask]:
    """The log of the capital of the bets against each client, less that of those for it; and where one alone decides.

    A bet on one client that reaches 1 / alpha is evidence of harm at level alpha, by Ville's inequality. That puts the
    client in doubt. To exclude it for good the capital must reach n / alpha, for n clients that are judged.
    """
    against, harmful = np.zeros(len(client_ids)), np.zeros(len(client_ids), bool)
    for watch, state in zip(guard.watches, histories, strict=True):
        if isinstance(watch.history, Capital) and isinstance(watch.rule, Ville):
            harm, help = watch.history.against(state, client_ids)
            level = ville_threshold(watch.rule.alpha)
            harmful |= harm > level
            # rare turns jolt the model and look like harm: jurors make an honest client's turns rare by proof alone
            # and one gap between two models loses most of the bet that it helps
            help = np.maximum(help, 0.0) if watch.signal.jurors and guard.paired else help
            against += (np.maximum(harm - level, 0.0) if watch.signal.jurors else harm) - help
    return against, harmful


def _lasting(guard: Guard, histories: Sequence[State], records: Sequence[WatchRecord]) -> Mask:
    """The clients that a watch with a history doubts; without one, a doubt is about the round alone."""
    flags = [
        record.flagged
        for watch, state, record in zip(guard.watches, histories, records, strict=True)
        if watch.action == "doubt" and state
    ]
    return combine_flags(flags, "any") if flags else np.zeros(1, bool)


def restored(now: State, past: State, client_ids: Collection[str]) -> State:
    """A history in which these clients stand as they did before."""
    if isinstance(now, Remembered):
        return now.restored(past, client_ids)
    return {c: value for c, value in now.items() if c not in client_ids} | {c: past[c] for c in client_ids if c in past}


def unmoved(now: Memory, past: Memory, client_ids: Collection[str]) -> Memory:
    """A memory in which these clients stand as they did before; what is counted by rounds goes on."""
    some = frozenset(client_ids)
    if not some:
        return now
    return replace(
        now,
        histories=tuple(restored(*states, some) for states in zip(now.histories, past.histories, strict=True)),
        excluded=restored(now.excluded, past.excluded, some),
        doubted=(now.doubted - some) | (past.doubted & some),
        seen=restored(now.seen, past.seen, some),
    )


def _remember(
    history: CompleteHistory, past: State, client_ids: tuple[str, ...], reading: Reading, trusted: Mask
) -> tuple[State, Scores]:
    """What a history makes of a round; a value that is no number is remembered as the largest one, with a score of NaN.

    Its client is flagged in this round alone: storing NaN would flag it in every later round as well.
    """
    values = reading.values
    odd = ~np.isfinite(values)
    known = np.where(odd, values[~odd].max(initial=0.0), values) if odd.any() else values
    if history.parts and reading.parts:
        known = np.column_stack([known, *reading.parts.values()])
    state, scores = history.step(past, client_ids, known, trusted)
    return state, np.where(odd, np.nan, scores) if odd.any() else scores
