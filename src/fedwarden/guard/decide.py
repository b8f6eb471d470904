"""The decision about a cohort, as one pure function."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.errors import returned
from ..core.notes import Note
from ..core.reported import ACROSS, COSINE, UP, WORSE, joined
from ..core.stats import Mask, Norms, Scores, V, Weights, scatter, shrink
from ..core.types import NO_WORD, Cohort, Reading, Rejection, Reported, RoundRecord, Word
from ..updates.formed import Contained, Mixed
from ..updates.gram import copy_leaders, cosines, cosines_to_others, planar, squared_distances
from ..updates.sketch import ALL_PAIRS
from ..updates.updates import Updates
from .admission import buffer_notes, enter, named, unusable
from .containment import CARRIED, bounded, discount
from .copies import APART, Leaders, claims, one_vote
from .deviation import deviations
from .judge import Guard, Judgement, Memory, judge, usual
from .jury import Pair
from .telling import judgement_notes
from .word import heard, obey, overrule

DIGITS = 4  # of a place on the map
EQUAL = 1e-6  # of the length: identical updates differ less, by rounding alone; trained updates differ far more


@dataclass(frozen=True, eq=False)
class Measured:
    """The measurements of a round's updates: each watch's reading, their lengths, and inner products if requested."""

    readings: tuple[Reading, ...] = ()
    lengths: Norms = field(default_factory=lambda: np.zeros(0))
    products: NDArray[np.float64] | None = None

    def select(self, keep: Mask) -> Measured:
        """The measurements of some of the updates."""
        readings = (
            replace(r, values=r.values[keep], parts={name: part[keep] for name, part in r.parts.items()})
            for r in self.readings
        )
        products = None if self.products is None else self.products[np.ix_(keep, keep)]
        return self if keep.all() else Measured(tuple(readings), self.lengths[keep], products)


@dataclass(frozen=True, eq=False, kw_only=True)
class Decision:
    """The decision about a cohort, as input for the aggregator.

    ``cohort`` is the admitted part, at the positions ``index`` of the cohort that ``came``, with bounded example
    counts; the other fields are about its rows. ``measured`` has their measurements for the record. ``weights`` in
    [0, 1] are the clients' weights in the model; ``factors`` shorten their rows. ``buffers`` has the median of the
    columns that are not measured, or is empty if each row keeps its own. ``rows`` are those to combine: without lone
    entries if a watch asks for it, then shortened if they are long or old. ``pair`` names the jurors that are sent
    another model than the next global one, if any.
    """

    came: Cohort
    index: tuple[int, ...] = ()
    cohort: Cohort
    rows: Updates
    measured: Measured = field(default_factory=Measured)
    weights: Weights = field(default_factory=lambda: np.zeros(0))
    factors: Weights = field(default_factory=lambda: np.zeros(0))
    buffers: Tensor = field(default_factory=lambda: torch.zeros(0))
    judgement: Judgement = field(default_factory=Judgement)
    excluded: tuple[str, ...]
    suspended: tuple[str, ...]
    rejected: tuple[Rejection, ...]
    notes: tuple[Note, ...]
    pair: Pair | None = None

    @property
    def kept(self) -> Mask:
        """The clients that are combined."""
        return np.asarray(self.weights > 0)

    @property
    def unsuspected(self) -> Mask:
        """The admitted clients that are neither flagged nor in doubt, as a mask over the cohort that ``came``."""
        return self.wide(~self.judgement.suspects, False)

    @property
    def changed(self) -> Mask:
        """The clients whose row is changed before it is combined."""
        return np.asarray((self.factors < 1) | self.judgement.alone) if len(self.factors) else self.factors < 1

    @cached_property
    def shift(self) -> Tensor:
        """The difference (d,) of the other model that some jurors are sent from the next global one, or empty.

            +- c_i / (c_i + C) (x_i - sum_{j != i} c_j x_j / C),   C = sum_{j != i} c_j

        That is the mean with the tested client i minus the mean without it; the negative of it if i is in the model.
        """
        if self.pair is None:
            return torch.zeros(0)
        counts, i = self.cohort.num_examples * self.weights, self.cohort.client_ids.index(self.pair.client)
        own = min(self.cohort.num_examples[i], counts.max() or math.inf)
        counts[i] = 0.0
        others = counts.sum()
        shares = -counts / others if others else counts
        shares[i] = 1.0
        sign = -1.0 if self.pair.inside else 1.0
        found = self.rows.weighted_sum(sign * own / (own + others) * shares).clone()
        for start, stop in self.cohort.updates.buffers:
            found[start:stop] = 0.0
        return found

    @property
    def length(self) -> float:
        """The median length of the admitted updates, of clients in good standing if there are any."""
        lengths, trusted = self.measured.lengths, self.cohort.trusted
        return float(np.median(lengths[trusted] if trusted.any() else lengths))

    def wide(self, values: NDArray[V], fill: float = 0.0) -> NDArray[V]:
        """Values of the admitted clients, at their positions in the cohort that ``came``; ``fill`` elsewhere."""
        return scatter(values, self.index, len(self.came), fill)

    def record(self, weights: Weights | None = None, notes: Sequence[Note] = ()) -> RoundRecord:
        """The record of the round, for the cohort that ``came``; the new model was made with ``weights``."""
        return RoundRecord(
            round=self.came.round,
            client_ids=self.came.client_ids,
            num_examples=self.came.num_examples,
            weights=self.wide(self.weights if weights is None else weights),
            watches=self.judgement.wide(self.index, len(self.came)),
            flagged=self.wide(self.judgement.suspects, False),
            excluded=self.excluded,
            rejected=self.rejected,
            notes=(*self.notes, *notes),
            metrics={"update_length": self.length, **self.judgement.facts} if len(self.index) else {},
            suspended=self.suspended,
            reported=joined(self.came.reported, self._directions(self.weights if weights is None else weights)),
        )

    def _directions(self, weights: Weights) -> Reported:
        """Each update's cosine with the rest of the model's step, and its place on a map; needs inner products."""
        products, ids = self.measured.products, self.cohort.client_ids
        if products is None:
            return {}
        found = {COSINE: cosines_to_others(products, weights)}
        if len(ids) <= ALL_PAIRS:
            found[ACROSS], found[UP] = planar(cosines(products)).T.round(DIGITS)
        return {name: dict(zip(ids, values.tolist(), strict=True)) for name, values in found.items()}


def decide(
    guard: Guard,
    memory: Memory,
    cohort: Cohort,
    rejected: Sequence[Rejection] = (),
    pairs: bool = False,
    word: Word = NO_WORD,
) -> tuple[Memory, Decision]:
    """Admit, measure and judge a cohort; ``rejected`` are replies that were rejected before.

    ``pairs``: the aggregator will need the inner products of all rows. ``word`` is the operator's.
    """
    word = heard(word, guard)
    memory = obey(word, memory)
    products = pairs or (guard.share_copies and len(cohort) <= ALL_PAIRS)
    cohort, unnamed = named(cohort)
    inside, index, refused, notes = enter(guard.admission, cohort, memory.excluded, guard.spread, products)
    came, here = cohort.replies, ~inside.context
    context = frozenset(client for client, old in zip(cohort.client_ids, cohort.context, strict=True) if old)
    refused = [*rejected, *unnamed, *(r for r in refused if r.client_id not in context)]
    if not here.any():
        notes = [Note.of("no_usable_reply", rejected=len(refused))]
        return memory, Decision(
            came=came,
            cohort=inside.replies,
            rows=inside.replies.updates,
            excluded=tuple(memory.excluded),
            suspended=memory.suspended,
            rejected=tuple(refused),
            notes=tuple(notes),
        )
    if guard.jurors:
        memory, inside, silent = _hear(guard, memory, inside)
        notes += silent
    leaders = _leaders(guard, inside)
    if (leaders != np.arange(len(leaders))).any():
        inside = replace(inside, claimed=claims(inside.claimed, leaders))
    before, trusted = memory, usual(memory, inside.client_ids, leaders)
    measured = measure(guard, inside.trusting(trusted), pairs or guard.pairs)
    memory, judgement = judge(
        guard, memory, inside.round, inside.client_ids, leaders, trusted, measured.readings, context
    )
    memory, judgement = overrule(word, memory, judgement, inside.client_ids)
    if not guard.newcomers:
        memory = replace(memory, population=memory.population.measuring(measured.lengths[trusted & here]))
    common = trusted & ~judgement.suspects
    details = deviations(inside, judgement.doubted, common if common.sum() > 1 else trusted)
    notes += judgement_notes(guard, before, memory, judgement, inside.client_ids, leaders, details)
    notes += [] if guard.share_copies else _repeated(inside)
    weights, counts = one_vote(judgement.weights, inside.num_examples, leaders)
    kept = here & (weights > 0)
    counts[kept] = guard.admission.clip([c for c, k in zip(inside.client_ids, kept, strict=True) if k], counts[kept])
    if not kept.any():
        notes.append(Note.of("all_excluded", many=int(here.sum())))
    buffers = torch.zeros(0)
    if kept.any() and guard.admission.buffers == "median" and inside.updates.buffers:
        buffers, far = inside.updates.agreed(judgement.weights > 0)  # also of copies, whose buffers may differ
        buffers = buffers * float(discount(inside.ages[kept]).mean())
        notes += buffer_notes(inside.client_ids, np.where(kept, far, 0.0))
    bound, joint = judgement.suspects & ~judgement.freed, None if guard.joint is None else guard.joint * here.mean()
    factors = bounded(measured.lengths, inside.trusted, bound, kept, guard.shorten, joint)
    if judgement.seldom:
        middle = before.population.middle
        factors = np.minimum(factors, shrink(measured.lengths, CARRIED * middle))
        judgement = replace(judgement, facts={**judgement.facts, "carried_length": middle})
    factors = factors * discount(inside.ages)
    rows, fit = inside.updates, [c for c in inside.client_ids if c not in context]
    if (judgement.alone & here).any():
        rows = Contained(rows, trusted if trusted.any() else inside.reference, judgement.alone)
    rows = rows.select(np.flatnonzero(here))
    return memory, Decision(
        came=came,
        index=tuple((np.cumsum(~cohort.context) - 1)[list(index)][here].tolist()),  # among the replies
        cohort=replace(inside, num_examples=counts, rejected=unusable(refused, fit)).replies,
        rows=Mixed(rows, np.diag(factors[here])) if (factors[here] < 1).any() else rows,
        measured=measured.select(here),
        weights=weights[here],
        factors=factors[here],
        buffers=buffers,
        judgement=judgement.select(here),
        excluded=tuple(memory.excluded),
        suspended=memory.suspended,
        rejected=tuple(refused),
        notes=tuple(note for note in notes if not note.clients or not context.issuperset(note.clients)),
        pair=memory.hearings.pair,
    )


def _hear(guard: Guard, memory: Memory, cohort: Cohort) -> tuple[Memory, Cohort, list[Note]]:
    """The memory and cohort with the reports of jurors in good standing, and a note of jurors without a report."""
    here = guard.jurors.intersection(cohort.client_ids)
    reports = {juror: told for juror, told in cohort.reported.get(WORSE, {}).items() if juror in here}
    believed = here - set(memory.excluded) - memory.doubted
    without: Reported = {}
    if guard.paired:
        told = {juror: number for juror, number in reports.items() if juror in believed}
        hearings, tried, without = memory.hearings.compare(told, guard.jurors)
    else:
        hearings, tried = memory.hearings.hear(reports, believed)
    silent = sorted(juror for juror in here or guard.jurors if not 0 <= reports.get(juror, -1.0) <= 1)
    notes = [Note.of("jurors_silent", *silent, metric=WORSE)] if silent and cohort.round > 1 else []
    return replace(memory, hearings=hearings), replace(cohort, tried=tried, tried_without=without), notes


@np.errstate(over="ignore")  # a signal may square numbers that are too large for that
def measure(guard: Guard, cohort: Cohort, pairs: bool) -> Measured:
    """Every watch's signal, shared signals measured once; with ``pairs``, the inner products of all updates."""
    found: dict[int, Scores | Reading] = {i: guard.watches[i].signal(cohort) for i in sorted(set(guard.firsts))}
    updates = cohort.updates
    readings = [r if isinstance(r := found[first], Reading) else Reading(r) for first in guard.firsts]
    for values in (r.values for r in readings):
        returned(np.shape(values) == (updates.n,), f"a signal returns a score for each of {updates.n} clients", values)
    return Measured(
        tuple(readings),
        updates.lengths(),
        updates.compared().inner_products() if pairs else None,
    )


def _leaders(guard: Guard, cohort: Cohort) -> Leaders:
    """The index of the client that each one copies, its own if none; the copied one is in good standing if possible."""
    if not guard.share_copies:
        return np.arange(len(cohort))
    updates = cohort.updates
    return copy_leaders(squared_distances(updates.compared().gram()), updates.lengths(), cohort.trusted)


def _repeated(cohort: Cohort) -> list[Note]:
    """Notes of groups of clients with identical updates, for a guard in which each has a vote.

    Only updates of equal length and equal distance from the mean are compared.
    """
    updates, ids, notes = cohort.updates, cohort.client_ids, []
    lengths = updates.lengths()
    long = [part for part in _runs(np.arange(len(ids)), lengths, lengths) if len(part) > 1 and lengths[part[0]] > 0]
    distances = np.sqrt(updates.survey().sq_distances) if long else lengths
    for part in (far for alike in long for far in _runs(alike, distances, lengths) if len(far) > 1):
        squares, free = squared_distances(updates.select(part).compared().gram()), np.ones(len(part), bool)
        for i, j in enumerate(part.tolist()):
            same = free & (squares[i] <= (EQUAL * lengths[j]) ** 2)
            free &= ~same
            if same.sum() > 1:
                notes.append(Note.of(APART, *(ids[k] for k in np.sort(part[same]).tolist())))
    return notes


def _runs(index: NDArray[np.int_], values: Norms, lengths: Norms) -> list[NDArray[np.int_]]:
    """The positions, grouped by values that are equal up to rounding."""
    order = index[np.argsort(values[index])]
    return np.split(order, np.flatnonzero(np.diff(values[order]) > EQUAL * lengths[order][1:]) + 1)
