"""The values that flow through a round."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .notes import Note
from .stats import Counts, Mask, Scores, Weights

if TYPE_CHECKING:  # whoever reads the records of a run needs no torch
    from torch import Tensor, nn

    from ..updates.updates import Updates

Ids = tuple[str, ...]
State = Mapping[str, Any]
"""What a history or an aggregator carries from round to round."""
Reported = Mapping[str, Mapping[str, float]]
"""Numbers of single clients by name, then by client; see :mod:`fedwarden.core.reported`."""


@dataclass(frozen=True, eq=False)
class _CohortFields:
    """What a cohort holds, one entry per client."""

    round: int
    client_ids: tuple[str, ...]
    updates: Updates
    num_examples: Counts
    params: Tensor | None
    trusted: Mask
    claimed: Counts
    reported: Reported
    output: OutputLayer | None
    layers: Mapping[str, int]
    tried: Mapping[str, float]
    tried_without: Reported
    rejected: int
    context: Mask
    ages: Scores

    def __post_init__(self) -> None:
        if not hasattr(self.updates, "survey"):
            raise TypeError(f"a cohort needs Updates, as Updates.of(rows) makes; got {type(self.updates).__name__}")
        counts = (self.num_examples, self.claimed)
        per_client = (self.client_ids, self.updates, *counts, self.trusted, self.context, self.ages)
        if len({len(part) for part in per_client}) > 1:
            raise ValueError(
                f"a cohort needs one id, row and count per client; got {len(self.client_ids)} ids, "
                f"{len(self.updates)} rows, {len(self.num_examples)} counts"
            )


@dataclass(frozen=True, eq=False, init=False)
class Cohort(_CohortFields):
    """The clients of one round and what they sent: the only thing that signals and aggregators see.

    Rows of ``updates`` are deltas, client weights minus the round's global parameters. ``trusted`` marks the clients
    that define what is normal, those not excluded in an earlier round; everybody by default. ``num_examples`` are the
    counts that are believed, ``claimed`` those that were sent; the same by default. ``reported`` are numbers that
    clients tell of themselves, by name and client. ``output`` says where the model's output layer lies, and ``layers``
    the first column of each layer by its name, where that is known. ``tried`` is what a guard's jurors make of the last
    round's turns, see :mod:`fedwarden.guard.jury`, and ``tried_without`` the same without single ones of them, where it
    has to be shown without any. ``rejected`` clients answered with what could not be used: see
    :func:`fedwarden.aggregators.common.tolerated`. ``context`` marks earlier updates that set the scale beside the
    replies, see :mod:`fedwarden.guard.window`: none of them is decided about. ``ages`` says how many rounds ago the
    model was made that an update began from. It has no field for the truth.
    """

    def __init__(
        self,
        round: int,
        client_ids: Sequence[str],
        updates: Updates,
        num_examples: ArrayLike,
        params: Tensor | None = None,
        trusted: ArrayLike = (),
        claimed: ArrayLike = (),
        reported: Reported | None = None,
        output: OutputLayer | None = None,
        layers: Mapping[str, int] | None = None,
        tried: Mapping[str, float] | None = None,
        tried_without: Reported | None = None,
        rejected: int = 0,
        context: ArrayLike = (),
        ages: ArrayLike = (),
    ) -> None:
        ids, counts = tuple(map(str, client_ids)), np.asarray(num_examples, np.float64)
        standing, sent = np.asarray(trusted, bool), np.asarray(claimed, np.float64)
        earlier, old = np.asarray(context, bool), np.asarray(ages, np.float64)
        super().__init__(
            int(round),
            ids,
            updates,
            counts,
            params,
            standing if len(standing) else np.ones(len(ids), bool),
            sent if len(sent) else counts,
            reported or {},
            output,
            layers or {},
            tried or {},
            tried_without or {},
            int(rejected),
            earlier if len(earlier) else np.zeros(len(ids), bool),
            old if len(old) else np.zeros(len(ids)),
        )

    def __len__(self) -> int:
        return len(self.client_ids)

    @cached_property
    def shares(self) -> Weights:
        """The weight of each trusted client by its example count; sums to 1."""
        counts = np.where(self.trusted, self.num_examples, 0.0)
        total = counts.sum()
        return counts / total if total > 0 else counts

    @property
    def reference(self) -> Mask:
        """The trusted clients, or everybody where nobody is: who the centre is computed from."""
        return self.trusted if self.trusted.any() else np.ones(len(self), bool)

    def trusting(self, trusted: Mask) -> Cohort:
        """The same with other clients in good standing."""
        return self if np.array_equal(trusted, self.trusted) else replace(self, trusted=trusted)

    def select(self, index: Sequence[int]) -> Cohort:
        """The same round with fewer clients; shares the buffers."""
        if len(index) == len(self) and list(index) == list(range(len(self))):
            return self
        keep = np.asarray(index, dtype=int)
        return replace(
            self,
            client_ids=tuple(self.client_ids[i] for i in keep),
            updates=self.updates.select(keep),
            num_examples=self.num_examples[keep],
            trusted=self.trusted[keep],
            claimed=self.claimed[keep],
            context=self.context[keep],
            ages=self.ages[keep],
        )

    @property
    def replies(self) -> Cohort:
        """The same without its context."""
        return self.select(np.flatnonzero(~self.context).tolist())


class Dense(NamedTuple):
    """Where a matrix of weights begins among a model's columns, and its numbers of rows and of columns."""

    start: int
    rows: int
    width: int


class OutputLayer(NamedTuple):
    """Where the columns of a model's output layer begin, those of its bias, and how many outputs it has.

    ``dense`` are the fully connected layers that end in it, in order, the output layer itself last.
    """

    start: int
    bias: int
    size: int
    dense: tuple[Dense, ...]


def output_layer(shapes: Sequence[Sequence[int]]) -> OutputLayer | None:
    """The last of a model's arrays, in their order, with two dimensions; its bias is the array behind it, if any.

    A layer before it leads to it if it has as many rows as the next one has columns.

    >>> found = output_layer([(64, 30), (64,), (10, 64), (10,)])
    >>> found[:3], [tuple(layer) for layer in found.dense]
    ((1984, 2624, 10), [(0, 64, 30), (1984, 10, 64)])
    >>> output_layer([(10, 64)])[:3], output_layer([(5,)])
    ((0, 640, 0), None)
    """
    sizes = [math.prod(shape) for shape in shapes]
    wide = [i for i, shape in enumerate(shapes) if len(shape) > 1]
    if not wide:
        return None
    last = wide[-1]
    start, behind = sum(sizes[:last]), tuple(shapes[last + 1]) if last + 1 < len(shapes) else ()
    biased = behind == (shapes[last][0],)
    dense = [Dense(start, shapes[last][0], math.prod(shapes[last][1:]))]
    for i in reversed(wide[:-1]):
        if len(shapes[i]) != 2 or shapes[i][0] != dense[0].width:
            break
        dense.insert(0, Dense(sum(sizes[:i]), *shapes[i]))
    return OutputLayer(start, start + sizes[last], behind[0] if biased else 0, tuple(dense))


def first_columns(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """The column at which each of a model's arrays begins.

    >>> first_columns(["weight", "bias"], [(10, 64), (10,)])
    {'weight': 0, 'bias': 640}
    """
    sizes = [math.prod(shape) for shape in shapes]
    return dict(zip(names, accumulate(sizes, initial=0), strict=False))


@dataclass(frozen=True, eq=False)
class Server:
    """What the server holds besides the updates: the architecture, samples of its own, and training on them.

    ``probe`` are inputs, or makes them from the round's parameters; ``labels`` are their classes, or the right answers
    of another task, whose ``losses`` (k,) of outputs and answers stand in for the cross-entropy. ``root`` gives the
    update that the server's own training makes of a model in a round: (params, round) -> (d,). ``blank`` is an input,
    such as zeros, to try a new model on where there is no probe.
    """

    model: nn.Module | None = None
    probe: Tensor | Callable[[Tensor], Tensor] | None = None
    labels: Tensor | None = None
    root: Callable[[Tensor, int], Tensor] | None = None
    blank: Tensor | None = None
    losses: Callable[[Tensor, Tensor], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class Reading:
    """What a signal says where it has more to say than one number per client: the parts that make it up, by name.

    ``facts`` are numbers of the round as a whole; they are recorded among its metrics. ``warning`` says why it has
    nothing to say, where that is not for the clients' sake.
    """

    values: Scores
    parts: Mapping[str, Scores] = field(default_factory=dict)
    facts: Mapping[str, float] = field(default_factory=dict)
    warning: Note | None = None


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a rule says of one set of scores: who lies above the threshold; ``warning`` may be in words of its own."""

    flagged: Mask
    threshold: float
    warning: Note | str | None = None


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The combined update (d,) and, where it is a weighted mean, the weight of each client."""

    update: Tensor
    weights: Weights | None = None


@dataclass(frozen=True)
class Rejection:
    """A reply that was not let in, and why; ``str(reason)`` is a sentence."""

    client_id: str
    reason: Note


LONGEST_NAME = 200  # characters


def name_fault(client: str) -> Note | None:
    """Why a client cannot be called this, or None.

    >>> print(name_fault("Basel"), name_fault("x" * 201))
    None its name has 201 characters; expected 1 to 200
    """
    return None if 0 < len(client) <= LONGEST_NAME else Note.of("name_length", length=len(client), most=LONGEST_NAME)


@dataclass(frozen=True)
class Word:
    """What the operator has said of clients: an input of every round.

    No watch skips, suspends or excludes a ``trusted`` client. An ``excluded`` one is not asked and has weight 0, even
    if it is trusted. The ``readmitted`` were readmitted since the last round: their exclusion and the evidence against
    them are cleared once. The ``suspended`` are from this round on, as they were in the run that this one follows.
    While ``observing``, every watch judges and none of them acts.
    """

    trusted: frozenset[str] = frozenset()
    excluded: frozenset[str] = frozenset()
    readmitted: frozenset[str] = frozenset()
    observing: bool = False
    suspended: frozenset[str] = frozenset()


NO_WORD = Word()


@dataclass(frozen=True, eq=False)
class WatchRecord:
    """What one watch saw in one round; NaN for clients that were rejected. ``words`` say what its signal is."""

    name: str
    signal: Scores
    scores: Scores
    threshold: float
    flagged: Mask
    warning: Note | None = None
    parts: Mapping[str, Scores] = field(default_factory=dict)
    words: str = ""


@dataclass(frozen=True, eq=False)
class RoundRecord:
    """Everything about a round as data: what the ledger stores and every reader shows; ``str(note)`` is a sentence.

    Of those ``excluded`` after the round, the ``suspended`` are still asked and come back once they are clean.
    ``reported`` has clients that are not among ``client_ids`` too: one may evaluate that did not train.
    """

    round: int
    client_ids: tuple[str, ...]
    num_examples: Counts
    weights: Weights
    watches: tuple[WatchRecord, ...] = ()
    flagged: Mask = field(default_factory=lambda: np.zeros(0, bool))
    excluded: tuple[str, ...] = ()
    rejected: tuple[Rejection, ...] = ()
    notes: tuple[Note, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    suspended: tuple[str, ...] = ()
    reported: Reported = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Outcome:
    """The result of one guarded round: the update to apply and the record of how it came about."""

    update: Tensor
    record: RoundRecord

    @property
    def weights(self) -> Weights:
        """The weight of each client in the update; 0 = not in the model."""
        return self.record.weights


@dataclass(frozen=True)
class Observation:
    """One number of one round beside what its past let expect.

    ``layer`` is empty for the whole model. ``score`` is the departure in deviations of the past, ``p`` its probability
    by chance; both are NaN while the past is too short. Of runs without a change at most a share alpha has an alarm,
    for each source, metric and layer, where noise about the trend is Gaussian. ``parts`` are the standardised changes
    of the single classes.
    """

    round: int
    source: str
    metric: str
    layer: str
    value: float
    expected: float
    score: float
    p: float
    alarm: bool
    parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def divergence(self) -> float:
        """How far the value lies above what was expected."""
        return self.value - self.expected

    @property
    def relative(self) -> float:
        """The divergence as a part of what was expected."""
        return self.divergence / abs(self.expected) if self.expected else math.nan

    def moved(self, limit: float = 3.0) -> tuple[str, ...]:
        """The classes that moved by more than some deviations, farthest first."""
        far = sorted(self.parts, key=lambda c: -abs(self.parts[c]))
        return tuple(c for c in far if abs(self.parts[c]) > limit)
