"""The warden: admission, watches, policy and aggregator, and all that is remembered between rounds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from .admission import (
    Admission,
    Reply,
    admit,
    buffer_notes,
    clipped_notes,
    idle_faults,
    screen,
    size_faults,
    type_notes,
)  # fmt: skip
from .aggregators.clipping import shrink
from .core.errors import ConfigError
from .core.html import facts
from .core.linalg import copy_leaders, squared_distances
from .core.protocols import Aggregator, Decision, History, Policy, Rule, Signal, equip
from .core.registry import component, describe, make
from .core.series import Series
from .core.stats import Mask, Scores, mad
from .core.trial import Trial
from .core.types import Aggregate, Cohort, Outcome, Reading, Rejection, RoundRecord, Server, WatchRecord
from .core.updates import Updates
from .core.words import count, listed

Combine = Literal["any", "all", "vote"]
RECENT = 100  # rounds that a warden can show


@dataclass(frozen=True)
class Watch:
    """A signal, what is remembered of it, and the rule that judges it; names or tables are looked up.

    Clients are flagged from round ``start_round`` on. An ``optional`` watch needs a server; it takes part once the
    warden is equipped with one that has what it needs. Who a ``fleeting`` watch flags is left out of the round and
    no longer, whatever the policy does with those whom the others flag.
    """

    signal: Signal
    history: History = field(default_factory=lambda: make("history", "raw"))
    rule: Rule = field(default_factory=lambda: make("rule", "gesd"))
    start_round: int = 2
    name: str = ""
    optional: bool = False
    fleeting: bool = False

    def __init__(
        self,
        signal: Any,
        history: Any = "raw",
        rule: Any = "gesd",
        start_round: int = 2,
        name: str = "",
        optional: bool = False,
        fleeting: bool = False,
    ) -> None:
        for key, value in (("signal", signal), ("history", history), ("rule", rule)):
            object.__setattr__(self, key, component(key, value))
        object.__setattr__(self, "start_round", start_round)
        object.__setattr__(self, "name", name or describe(self.signal)["name"])
        object.__setattr__(self, "optional", optional)
        object.__setattr__(self, "fleeting", fleeting)


@dataclass(frozen=True)
class Memory:
    """All that a warden remembers: plain numbers by client id, and whatever its aggregator keeps."""

    histories: tuple[Mapping[str, Any], ...]
    tests: tuple[int, ...]
    excluded: Mapping[str, int]
    aggregator: Mapping[str, Any]
    known: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Guard:
    """How a round is judged; frozen.

    ``remeasure`` measures again without the clients just flagged, so that they do not pull the centre. With
    ``share_copies`` clients that send the same have one vote together. Nobody is flagged while fewer than ``quorum``
    different updates of clients in good standing have come. Nobody is excluded for good in a round in which less than
    ``majority`` of these is beyond question, nor where half of all clients that were ever seen would be: those flagged
    are left out of that round. Updates longer than ``shorten`` times the median one are shortened to that.
    """

    watches: tuple[Watch, ...]
    policy: Policy
    combine: Combine = "any"
    remeasure: bool = False
    share_copies: bool = False
    quorum: int = 1
    majority: float = 0.0
    shorten: float | None = None


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the watches make of one round's measurements; ``doubted`` are left out of it alone."""

    memory: Memory
    watches: tuple[WatchRecord, ...]
    flagged: Mask
    doubted: Mask
    severity: Scores
    weights: Scores = field(default_factory=lambda: np.zeros(0))
    spared: Mask = field(default_factory=lambda: np.zeros(0, bool))


def combine_flags(flags: Sequence[Mask], how: Combine) -> Mask:
    """Several watches' flags as one: any of them, all of them, or more than half.

    >>> a, b, c = np.array([True, True]), np.array([True, False]), np.array([False, False])
    >>> [combine_flags([a, b, c], how).tolist() for how in ("any", "all", "vote")]
    [[True, True], [False, False], [True, False]]
    """
    votes = np.sum(flags, axis=0)
    needed = {"any": 1, "all": len(flags), "vote": len(flags) // 2 + 1}[how]
    return np.asarray(votes >= needed)


def judge(
    guard: Guard,
    memory: Memory,
    round: int,
    client_ids: tuple[str, ...],
    signals: Sequence[Reading],
    trusted: Mask,
    decides: bool,
    flagged: Mask,
    doubted: Mask,
) -> Judgement:
    """Decide from measurements alone; who is ``flagged`` or ``doubted`` by an earlier look at the round stays so.

    A score that is not a number cannot be compared, so its client is flagged. A guard that does not decide, because
    there are too few to compare, remembers nothing of the round either.
    """
    histories, tests, records = [], [], []
    severity = np.zeros(len(client_ids))
    for watch, past, test, signal in zip(guard.watches, memory.histories, memory.tests, signals, strict=True):
        values, parts = signal.values, signal.parts
        state, scores = watch.history.step(past, client_ids, values, trusted)
        active = decides and round >= watch.start_round
        sound = np.isfinite(scores)
        verdict = watch.rule(scores[trusted & sound], test + 1)
        above = ((scores > verdict.threshold) | ~sound) & active
        histories.append(state if decides else past)
        tests.append(test + active)
        words = str(getattr(watch.signal, "words", watch.name))
        records.append(WatchRecord(watch.name, values, scores, verdict.threshold, above, verdict.warning, parts, words))
        severity = np.maximum(severity, _severity(scores, trusted))
    lasting = [r.flagged for r, w in zip(records, guard.watches, strict=True) if not w.fleeting]
    fleeting = [r.flagged for r, w in zip(records, guard.watches, strict=True) if w.fleeting]
    flagged = flagged | combine_flags(lasting, guard.combine) if lasting else flagged
    doubted = (doubted | combine_flags(fleeting, "any") if fleeting else doubted) & ~flagged
    records = [
        replace(r, flagged=r.flagged & doubted) if w.fleeting else r
        for r, w in zip(records, guard.watches, strict=True)
    ]  # who is flagged for good is in no doubt
    after = replace(memory, histories=tuple(histories), tests=tuple(tests))
    return Judgement(after, tuple(records), flagged, doubted, severity)


def conclude(
    guard: Guard, before: Memory, judgement: Judgement, client_ids: tuple[str, ...], voters: Mask
) -> Judgement:
    """Let the policy act on what was judged, unless the majority that it rests on is too slim.

    A slim majority may be a minority that gathers around one honest client and so makes the others look odd: these are
    left out of the round, and nothing of it is held against them later. In question are those flagged or doubted, and
    who is half way to being flagged.
    """
    memory, flagged, doubted = judgement.memory, judgement.flagged, judgement.doubted
    question = flagged | doubted
    for watch, record in zip(guard.watches, judgement.watches, strict=True):
        if not watch.fleeting:
            question = question | (record.scores > max(record.threshold / 2, 0.0))
    known = memory.known | set(client_ids)
    gone = {*memory.excluded, *(c for c, f in zip(client_ids, flagged, strict=True) if f)}
    slim = (voters & ~question).sum() < guard.majority * voters.sum() or 2 * len(gone) >= len(known)
    spared = flagged & (guard.majority > 0 and bool(slim))
    spared &= np.array([c not in memory.excluded for c in client_ids], dtype=bool)
    decision = Decision(client_ids, flagged & ~spared, judgement.severity, doubted | spared)
    excluded, weights = guard.policy.step(memory.excluded, decision)
    names = [client_ids[i] for i in np.flatnonzero(spared).tolist()]
    histories = tuple(_restored(now, past, names) for now, past in zip(memory.histories, before.histories, strict=True))
    after = replace(
        memory, histories=histories, excluded=excluded, known=known if guard.majority else memory.known
    )  # fmt: skip
    return replace(judgement, memory=after, weights=weights, spared=spared & (weights == 0))


def decide(
    guard: Guard,
    memory: Memory,
    round: int,
    client_ids: tuple[str, ...],
    leaders: NDArray[np.int_],
    measure: Callable[[Mask], Sequence[Scores | Reading]],
) -> Judgement:
    """Measure and judge a round; with ``remeasure``, again without those just flagged until nobody new is.

    ``measure`` gives every watch's signal with the centre taken from the clients of a mask: the live guard reads the
    updates there, a replay what was recorded. ``leaders`` says of whom each client sends a copy, itself for most: a
    copy has the measurements of its leader and no part in what is normal. Never takes half of the clients in good
    standing out of the reference: who is left must be a majority.
    """
    n = len(client_ids)
    good = np.array([c not in memory.excluded for c in client_ids], dtype=bool)
    standing = good & (leaders == np.arange(n))
    decides = int(standing.sum()) >= guard.quorum
    judgement, flagged, doubted = None, np.zeros(n, bool), np.zeros(n, bool)
    while True:
        trusted = standing & ~flagged
        signals = [_of_leaders(signal, leaders) for signal in measure(trusted)]
        new = judge(guard, memory, round, client_ids, signals, trusted, decides, flagged, doubted)
        found = new.flagged & standing
        if judgement is not None and 2 * found.sum() >= standing.sum():
            break
        judgement = new
        if not guard.remeasure or (found == standing & ~trusted).all():
            break
        flagged, doubted = new.flagged & good, new.doubted & good
    return conclude(guard, memory, judgement, client_ids, standing)


def shortening(lengths: Scores, standing: Mask, ratio: float | None) -> Scores:
    """The factors that bring updates down to some times the median length of the clients in good standing.

        f_i = min(1, ratio * lower median over those j of ||x_j|| / ||x_i||)

    Whoever is left out of the round counts here: with tiny updates a minority could otherwise shorten all to nothing.

    >>> shortening(np.array([1.0, 2.0, 8.0]), np.ones(3, bool), ratio=2.0).tolist()
    [1.0, 1.0, 0.5]
    """
    if ratio is None or math.isinf(ratio) or not standing.any():
        return np.ones(len(lengths))
    limit = ratio * float(np.quantile(lengths[standing], 0.5, method="lower"))
    return shrink(lengths, limit)


def one_vote(weights: Scores, counts: Scores, leaders: NDArray[np.int_]) -> tuple[Scores, Scores]:
    """Weights and counts in which the first of some copies that is not left out stands for all of them.

    Its count is the largest of theirs: whoever copies a client must not take weight from it. More than half of all have
    an honest client among them, whose update may count for all of them.

    >>> one_vote(np.array([0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), np.arange(6.0), np.array([0, 0, 0, 3, 4, 5]))
    (array([0., 1., 0., 1., 1., 1.]), array([0., 2., 2., 3., 4., 5.]))
    """
    weights, counts = weights.copy(), counts.copy()
    for leader in np.unique(leaders):
        alike = leaders == leader
        group = np.flatnonzero(alike & (weights > 0))
        if len(group) > 1 and 2 * alike.sum() <= len(leaders):
            counts[group[0]] = counts[group].max()
            weights[group[1:]] = 0.0
    return weights, counts


class Warden:
    """Guards a federation: give it each round's cohort and apply the update it returns.

    >>> rows = np.array([[0.0, 0.1], [0.1, 0.0], [0.1, 0.1], [0.2, 0.1], [9.0, 9.0]])
    >>> watch = Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, start_round=1)
    >>> warden = Warden([watch], policy="exclude")
    >>> cohort = Cohort(1, tuple("abcde"), Updates.of(rows), np.full(5, 10.0))
    >>> warden.step(cohort).weights.tolist()
    [0.25, 0.25, 0.25, 0.25, 0.0]
    """

    def __init__(
        self,
        watches: Sequence[Watch] = (),
        policy: Any = "observe",
        aggregator: Any = "mean",
        combine: Combine = "any",
        admission: Admission | None = None,
        remeasure: bool = False,
        share_copies: bool = False,
        quorum: int = 1,
        shorten: float | None = None,
        majority: float = 0.0,
    ) -> None:
        """For ``combine``, ``remeasure`` and what follows see :class:`Guard`."""
        if combine not in ("any", "all", "vote"):
            raise ConfigError(f"combine is 'any', 'all' or 'vote'; got {combine!r}")
        self.watches = tuple(w for w in watches if not w.optional)
        self.waiting = tuple(w for w in watches if w.optional)
        names = [w.name for w in watches]
        if len(set(names)) < len(names):
            raise ConfigError(f"every watch needs a name of its own; got {', '.join(names)}: set name")
        self.policy: Policy = component("policy", policy)
        self.aggregator: Aggregator = component("aggregator", aggregator)
        self.combine: Combine = combine
        self.admission = admission or Admission()
        self.remeasure, self.share_copies, self.quorum, self.shorten = remeasure, share_copies, quorum, shorten
        self.majority = majority
        self.trial: Trial | None = None
        self.memory = self._blank()
        self.recent: deque[RoundRecord] = deque(maxlen=RECENT)

    @classmethod
    def preset(cls, name: str, **options: Any) -> Warden:
        """A ready-made warden: ``auto``, ``pid-made``, or any other registered preset."""
        warden = make("preset", name, **options)
        assert isinstance(warden, cls)
        return warden

    @property
    def guard(self) -> Guard:
        """How this warden judges a round, as a value."""
        return Guard(
            self.watches, self.policy, self.combine, self.remeasure, self.share_copies, self.quorum, self.majority,
            self.shorten,
        )  # fmt: skip

    @property
    def excluded(self) -> tuple[str, ...]:
        """The clients that are excluded now."""
        return tuple(self.memory.excluded)

    def equip(self, server: Server) -> Warden:
        """Give signals and aggregator what they need of the server, before the first round; returns this warden.

        Optional watches for which the server has nothing go on waiting for one that has.
        """
        ready, left = [], []
        for watch in self.waiting:
            try:
                ready.append(replace(watch, signal=equip(watch.signal, server), optional=False))
            except ConfigError:
                left.append(watch)
        self.watches = (*(replace(w, signal=equip(w.signal, server)) for w in self.watches), *ready)
        self.waiting = tuple(left)
        self.aggregator = equip(self.aggregator, server)
        self.trial = Trial.of(server)
        self.memory = self._blank()
        return self

    def include(self, names: Collection[str]) -> Warden:
        """Take in the optional watches of these names without a server, to judge recorded signals; returns itself."""
        known = tuple(replace(w, optional=False) for w in self.waiting if w.name in names)
        self.watches, self.waiting = (*self.watches, *known), ()
        self.memory = self._blank()
        return self

    def _blank(self) -> Memory:
        histories = tuple(w.history.init() for w in self.watches)
        return Memory(histories, (0,) * len(histories), self.policy.init(), self.aggregator.init())

    def asks(self, client_id: str) -> bool:
        """Whether this client should be asked for an update in the next round."""
        return self.policy.asks(str(client_id), self.memory.excluded)

    def receive(
        self,
        replies: Sequence[Reply],
        params: Sequence[torch.Tensor],
        round: int,
        measured: Sequence[tuple[int, int]] | None = None,
    ) -> Outcome:
        """One round from raw replies of whole models: what does not fit the global model is rejected first."""
        cohort, rejected = admit(replies, params, round, measured)
        return self.step(cohort, rejected)

    def step(self, cohort: Cohort, rejected: Sequence[Rejection] = ()) -> Outcome:
        """One round: screen, measure, decide, then aggregate what is left."""
        inside, keep, refused, notes = self._enter(cohort)
        rejections = [*rejected, *refused]
        if not len(inside):
            notes.append(f"no usable reply ({len(rejections)} rejected); the model is kept")
            return self._remember(_zeros(cohort), self._record(cohort, keep, None, rejections, notes, np.zeros(0)))
        leaders = self._leaders(inside)
        judgement = decide(
            self.guard, self.memory, inside.round, inside.client_ids, leaders,
            lambda trusted: self._measure(replace(inside, trusted=trusted)),
        )  # fmt: skip
        notes += judgement_notes(self.guard, judgement, inside.client_ids, leaders)
        weights, counts = one_vote(judgement.weights, inside.num_examples, leaders)
        state, aggregate = self._aggregate(replace(inside, num_examples=counts), weights, notes)
        self.memory = replace(judgement.memory, aggregator=state)
        weights = weights if aggregate.weights is None else aggregate.weights
        update = self._install(aggregate.update, cohort.params, notes)
        return self._remember(update, self._record(cohort, keep, judgement, rejections, notes, weights))

    def state_dict(self) -> dict[str, Any]:
        """All that is remembered, as plain numbers and tensors."""
        m = self.memory
        return {
            "histories": [dict(h) for h in m.histories],
            "tests": list(m.tests),
            "excluded": dict(m.excluded),
            "aggregator": dict(m.aggregator),
            "known": sorted(m.known),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where another warden of the same configuration stood."""
        if len(state["histories"]) != len(self.watches):
            raise ConfigError(f"this warden has {len(self.watches)} watches; the state has {len(state['histories'])}")
        known = frozenset(state.get("known", ()))
        self.memory = Memory(
            tuple(state["histories"]), tuple(state["tests"]), state["excluded"], state["aggregator"], known
        )

    def __repr__(self) -> str:
        names = ", ".join(w.name for w in self.watches)
        policy, aggregator = (describe(x)["name"] for x in (self.policy, self.aggregator))
        return f"Warden(watches=[{names}], policy={policy!r}, aggregator={aggregator!r})"

    @property
    def series(self) -> Series:
        """The last rounds that this warden judged, as arrays; they are for looking at and no part of its state."""
        return Series.of(tuple(self.recent))

    def plot(
        self, watch: str | None = None, client: str | None = None, scale: str = "linear", dark: bool = False
    ) -> Any:
        """The last rounds as a Plotly figure: the scores of a watch, the first by default, or one client."""
        return import_module("fedwarden.figures.guard").draw(self.series, watch, client, scale, dark)

    def _repr_html_(self) -> str:
        waiting = ", ".join(f"{w.name} (waits for a server)" for w in self.waiting)
        told = {
            "watches": ", ".join(filter(None, [*(w.name for w in self.watches), waiting])) or "none",
            "policy": describe(self.policy)["name"],
            "aggregator": describe(self.aggregator)["name"],
            "last round": self.recent[-1].round if self.recent else "none yet",
            "excluded": ", ".join(self.excluded) or "nobody",
        }
        return facts(told, "Warden")

    def _remember(self, update: torch.Tensor, record: RoundRecord) -> Outcome:
        if self.recent and record.round <= self.recent[-1].round:  # another run, or this one from an earlier state
            self.recent.clear()
        self.recent.append(record)
        return Outcome(update, record)

    def _enter(self, cohort: Cohort) -> tuple[Cohort, list[int], list[Rejection], list[str]]:
        """The part of the cohort that may stay, with clipped counts and who is trusted."""
        index, refused = screen(cohort, self.admission)
        keep = index.tolist()
        inside = self._standing(cohort.select(keep))
        if keep:
            survey = inside.updates.survey(inside.reference, inside.shares)
            faults = size_faults(survey.sq_norms, self.admission.norm_ratio)
            if inside.updates.measured:
                faults |= idle_faults(survey.sq_lengths)
            if faults:
                refused += [Rejection(inside.client_ids[i], reason) for i, reason in sorted(faults.items())]
                keep = [k for i, k in enumerate(keep) if i not in faults]
                inside = self._standing(cohort.select(keep))
        notes = clipped_notes(inside.client_ids, cohort.num_examples[keep], inside.num_examples)
        notes += type_notes(inside.client_ids, inside.updates.types(), inside.updates.dtype)
        return inside, keep, refused, notes

    def _leaders(self, cohort: Cohort) -> NDArray[np.int_]:
        """Of whom each client sends a copy, if anybody asks; clients in good standing lead."""
        if not self.share_copies:
            return np.arange(len(cohort))
        updates = cohort.updates
        return copy_leaders(squared_distances(updates.gram()), updates.lengths(), cohort.trusted)

    def _install(self, update: torch.Tensor, params: torch.Tensor | None, notes: list[str]) -> torch.Tensor:
        """The update, unless the model that it makes gives no numbers where the last one does."""
        if self.trial is None or params is None:
            return update
        params = params.to(update)
        floored = self.trial.floored(params, update)
        if floored is not update:
            notes.append("a variance of the new model was below 0; it is set to 0")
        if fault := self.trial.fault(params + floored, params):
            notes.append(fault)
            return torch.zeros_like(update)
        return floored

    def _standing(self, cohort: Cohort) -> Cohort:
        counts = self.admission.clip(cohort.client_ids, cohort.num_examples)
        trusted = np.array([c not in self.memory.excluded for c in cohort.client_ids], dtype=bool)
        return replace(cohort, num_examples=counts, trusted=trusted, claimed=cohort.num_examples)

    def _measure(self, cohort: Cohort) -> list[Scores | Reading]:
        """Every watch's signal; one that several watches share is measured once."""
        values: list[Scores | Reading] = []
        for i, watch in enumerate(self.watches):
            same = next((j for j in range(i) if self.watches[j].signal == watch.signal), None)
            values.append(watch.signal(cohort) if same is None else values[same])
        return values

    def _aggregate(self, cohort: Cohort, weights: Scores, notes: list[str]) -> tuple[Mapping[str, Any], Aggregate]:
        if not (weights > 0).any():
            notes.append(f"all {len(cohort)} clients are excluded; the model is kept")
            return self.memory.aggregator, Aggregate(_zeros(cohort), np.zeros(len(cohort)))
        counts, kept = cohort.num_examples.copy(), weights > 0
        counts[kept] = self.admission.clip([c for c, k in zip(cohort.client_ids, kept, strict=True) if k], counts[kept])
        updates = cohort.updates
        factors = shortening(updates.lengths(), cohort.trusted, self.shorten)
        if (factors < 1).any():
            updates = updates.mixed(np.diag(factors))
        try:
            cohort = replace(cohort, num_examples=counts, updates=updates)
            state, made = self.aggregator.step(self.memory.aggregator, cohort, weights)
        except ValueError as error:
            notes.append(
                f"the aggregator could not combine {int((weights > 0).sum())} updates ({error}); the model is kept"
            )
            return self.memory.aggregator, Aggregate(_zeros(cohort), np.zeros(len(cohort)))
        if self.admission.buffers == "median" and updates.buffers:
            agreed, far = updates.agreed(kept)
            notes += buffer_notes(cohort.client_ids, np.where(kept, far, 0.0))
            for a, b in updates.buffers if len(made.update) else ():
                made.update[a:b], agreed = agreed[: b - a], agreed[b - a :]
        return state, made

    def _record(
        self,
        cohort: Cohort,
        keep: Sequence[int],
        judgement: Judgement | None,
        rejected: Sequence[Rejection],
        notes: Sequence[str],
        weights: Scores,
    ) -> RoundRecord:
        """The record over all clients of the cohort as it came; rejected ones have NaN scores and weight 0."""
        n = len(cohort)

        def wide(values: np.ndarray[Any, Any], fill: Any) -> Any:
            out = np.full(n, fill, dtype=values.dtype)
            out[list(keep)] = values
            return out

        watches = () if judgement is None else judgement.watches
        return RoundRecord(
            round=cohort.round,
            client_ids=cohort.client_ids,
            num_examples=cohort.num_examples,
            weights=wide(weights, 0.0),
            watches=tuple(
                replace(
                    w,
                    signal=wide(w.signal, np.nan),
                    scores=wide(w.scores, np.nan),
                    flagged=wide(w.flagged, False),
                    parts={name: wide(part, np.nan) for name, part in w.parts.items()},
                )
                for w in watches
            ),
            flagged=np.zeros(n, bool) if judgement is None else wide(judgement.flagged, False),
            excluded=self.excluded if judgement is None else tuple(judgement.memory.excluded),
            rejected=tuple(rejected),
            notes=tuple(notes),
        )


def _severity(scores: Scores, trusted: Mask) -> Scores:
    """Robust z of every client relative to those in good standing."""
    reference = scores[trusted] if trusted.any() else scores
    return np.asarray((scores - np.median(reference)) / (mad(reference) + 1e-12), dtype=np.float64)


def judgement_notes(
    guard: Guard, judgement: Judgement, client_ids: Sequence[str], leaders: NDArray[np.int_]
) -> list[str]:
    """What a judgement leaves to be said of the round."""
    notes = [f"{w.name}: {w.warning}" for w in judgement.watches if w.warning]
    for i in np.flatnonzero(judgement.doubted & (judgement.weights == 0)).tolist():
        words = [r.words for r, w in zip(judgement.watches, guard.watches, strict=True) if w.fleeting and r.flagged[i]]
        notes.append(f"client {client_ids[i]} was left out of this round: {' and '.join(dict.fromkeys(words))}")
    if judgement.spared.any():
        spared = listed([client_ids[i] for i in np.flatnonzero(judgement.spared).tolist()])
        notes.append(f"{spared} would be excluded, but too few are beyond question: left out of this round alone")
    for i in np.unique(leaders[leaders != np.arange(len(leaders))]).tolist():
        names = [client_ids[j] for j in np.flatnonzero(leaders == i).tolist()]
        so = "share one vote" if 2 * len(names) <= len(leaders) else "are judged as one"
        notes.append(f"clients {listed(names)} sent the same update: they {so}")
    voters = len(np.unique(leaders[[c not in judgement.memory.excluded for c in client_ids]]))
    if guard.watches and voters < guard.quorum:
        notes.append(
            f"{count(voters, 'different update')} of clients in good standing: too few to decide on anybody; "
            f"expected {guard.quorum}"
        )
    return notes


def _of_leaders(signal: Scores | Reading, leaders: NDArray[np.int_]) -> Reading:
    """A signal in which every copy has the values of its leader."""
    values, parts = (signal.values, signal.parts) if isinstance(signal, Reading) else (signal, {})
    return Reading(values[leaders], {name: part[leaders] for name, part in parts.items()})


def _restored(now: Mapping[str, Any], past: Mapping[str, Any], client_ids: Sequence[str]) -> Mapping[str, Any]:
    """A history in which these clients stand as they did before."""
    kept = {c: value for c, value in now.items() if c not in client_ids}
    return kept | {c: past[c] for c in client_ids if c in past} if client_ids else now


def _zeros(cohort: Cohort) -> torch.Tensor:
    updates: Updates = cohort.updates
    return torch.zeros(updates.d, dtype=updates.dtype, device=updates.device)
