"""What may enter a round: every reply is let in, clipped or rejected, and never without a reason."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..core.stats import Counts, Norms, Weights, among, number
from ..core.types import Cohort, Rejection, Reported, first_columns, name_fault, output_layer
from ..core.words import reason, short
from ..updates.segments import Scaled
from ..updates.survey import LARGEST, Survey
from ..updates.updates import FAR, Updates
from .arrays import Place, attempt, row
from .limits import Admission

T = TypeVar("T")
L = TypeVar("L", bound="Letter")

MANY = 10.0  # times the median count from which on a claim is worth a word
NAMED = 40  # characters of a name that is too long, in the words about it
ABSENT = ("no_answer", "failed")  # an honest client may be away
SURPLUS = (
    "answered_twice",
    "model_gone",
    "not_asked",
    "other_name",
    "unknown_client",
)  # messages beside the replies of the round
SMALLEST = 1e-9  # examples that count as some: a share of less is lost in rounding, and its client is not


@dataclass(frozen=True)
class Reply:
    """What one client sent: its layers (or one flat array) and how many examples it says it used."""

    client_id: str
    layers: Any
    num_examples: float


def read_layers(layers: Any, like: Sequence[Tensor]) -> list[Any] | Note:
    """A reply's layers as arrays, or why they do not fit the global model's."""
    try:
        arrays = [layers] if isinstance(layers, np.ndarray | Tensor | Scaled) else list(layers)
        arrays = [layer if isinstance(layer, Tensor | Scaled) else np.asarray(layer) for layer in arrays]
        return _misfit(arrays, like) or [_beside(array, want) for array, want in zip(arrays, like, strict=True)]
    except Exception as error:  # a client makes the object: what it does when it is looked at is the client's choice
        return Note.of("layers_unreadable", error=reason(error), expected=len(like))


def _beside(array: Any, want: Tensor) -> Any:
    """An array on the device of the model's layer; a tensor without numbers, on torch's ``meta``, fails here."""
    if isinstance(array, Scaled) and array.device != want.device:
        return Scaled(array.values.reshape(array.shape).to(want.device), array.scale)
    return array.to(want.device) if isinstance(array, Tensor) and array.device != want.device else array


def _misfit(arrays: Sequence[Any], like: Sequence[Tensor]) -> Note | None:
    """Why arrays do not fit the global model's layers."""
    if len(arrays) != len(like):
        return Note.of("layer_count", sent=len(arrays), expected=len(like))
    for i, (array, want) in enumerate(zip(arrays, like, strict=True)):
        if tuple(array.shape) != tuple(want.shape):
            return Note.of("layer_shape", layer=i, shape=tuple(array.shape), expected=tuple(want.shape))
        if isinstance(array, Scaled) and array.fault:
            return Note.of("array", array=f"layer {i}", cause=array.fault)
        if _kind(array) != _kind(want):
            return Note.of("layer_dtype", layer=i, dtype=str(array.dtype), expected=str(want.dtype), family=_kind(want))
        if isinstance(array, Tensor) and array.layout != torch.strided:
            return Note.of("layer_layout", layer=i, layout=str(array.layout))
    return None


def count_fault(count: float) -> Note | None:
    """Why an example count cannot be used, or None.

    >>> print(count_fault(-5.0))
    claims -5 examples; expected a positive number
    """
    if not 0 < count < math.inf:
        return Note.of("count_not_positive", count=count)
    if not SMALLEST <= count <= LARGEST:
        return Note.of("count_out_of_range", count=count, least=SMALLEST, most=LARGEST)
    return None


class Letter(Protocol):
    """A reply that an integration has read: from whom, its layers, and how many examples it claims."""

    @property
    def client_id(self) -> str: ...
    @property
    def layers(self) -> Sequence[NDArray[Any] | Scaled]: ...
    @property
    def count(self) -> float: ...


class Form(Protocol):
    """The model's arrays in the order of its flat form, and the columns that enter distances."""

    @property
    def slots(self) -> Sequence[Place]: ...
    @property
    def measured(self) -> Sequence[tuple[int, int]]: ...


def read_each(found: Iterable[tuple[str, T]], read: Callable[[str, T], L]) -> tuple[list[L], list[Rejection]]:
    """What reading each client's reply gives, and those that cannot be used; of two replies the first counts.

    The engines have checked the names of their clients.
    """
    letters, seen = list[L](), set[str]()
    refused = []
    for client, reply in found:
        if client in seen:
            refused.append(Rejection(client, Note.of("answered_twice")))
            continue
        seen.add(client)
        letter = attempt(client, partial(read, client, reply))
        if isinstance(letter, Rejection):
            refused.append(letter)
        elif fault := count_fault(letter.count):
            refused.append(Rejection(client, fault))
        else:
            letters.append(letter)
    return letters, refused


def cohort_of(
    round: int,
    letters: Sequence[Letter],
    form: Form,
    params: Tensor | None,
    base: Tensor | None,
    reported: Reported,
) -> Cohort:
    """The cohort of what was read; its rows are the bytes that arrived, less the ``base`` of whole models."""
    names, shapes = [place.name for place in form.slots], [place.shape for place in form.slots]
    rows = [row(letter.layers) for letter in letters]
    return Cohort(
        round,
        [letter.client_id for letter in letters],
        Updates.of(rows, base, form.measured) if rows else Updates.empty(sum(map(math.prod, shapes))),
        np.array([letter.count for letter in letters]),
        params,
        reported=reported,
        output=output_layer(shapes),
        layers=first_columns(names, shapes),
    )


def admit(
    replies: Sequence[Reply], params: Sequence[Tensor], round: int, measured: Sequence[tuple[int, int]] | None = None
) -> tuple[Cohort, tuple[Rejection, ...]]:
    """Build the cohort from raw replies of whole models; what does not fit the global model is rejected."""
    kept, rejected = [], []
    wide = {p.dtype for p in params if p.dtype.is_floating_point} == {torch.float64}
    flat = torch.cat([p.detach().reshape(-1).to(torch.float64 if wide else torch.float32) for p in params])
    misfits = set[str]()
    for reply in replies:
        client = str(reply.client_id)
        if fault := name_fault(client):
            rejected.append(Rejection(short(client, NAMED), fault))
            continue
        read = Note.of("answered_twice") if client in misfits else read_layers(reply.layers, params)
        if isinstance(read, Note):
            misfits.add(client)
            rejected.append(Rejection(client, read))
        else:
            kept.append((reply, read))
    updates = Updates.of([layers for _, layers in kept], flat, measured) if kept else Updates.empty(flat.numel())
    counts = np.array([number(reply.num_examples) for reply, _ in kept], dtype=np.float64)
    cohort = Cohort(
        round,
        tuple(str(reply.client_id) for reply, _ in kept),
        updates,
        counts,
        flat,
        output=output_layer([p.shape for p in params]),
    )
    return cohort, tuple(rejected)


def named(cohort: Cohort) -> tuple[Cohort, list[Rejection]]:
    """The clients of a cohort whose names can be used, and the others as they are rejected."""
    faults = {i: fault for i, client in enumerate(cohort.client_ids) if (fault := name_fault(client))}
    if not faults:
        return cohort, []
    part = cohort.select([i for i in range(len(cohort)) if i not in faults])
    told = {key: {c: x for c, x in values.items() if not name_fault(c)} for key, values in cohort.reported.items()}
    refused = [Rejection(short(cohort.client_ids[i], NAMED), fault) for i, fault in faults.items()]
    return replace(part, reported=told), refused


def unusable(rejected: Iterable[Rejection], inside: Collection[str]) -> int:
    """How many clients answered with what could not be used; a message that is no client's own reply is none.

    >>> late, twice, empty = (Note.of(kind) for kind in ("no_answer", "answered_twice", "sent_nothing"))
    >>> unusable([Rejection("a", late), Rejection("b", twice), Rejection("c", empty), Rejection("c", twice)], ["b"])
    1
    """
    clients = {r.client_id for r in rejected if r.reason.kind not in (*ABSENT, *SURPLUS)}
    return len(clients.difference(inside))


def screen(cohort: Cohort, limits: Admission) -> tuple[list[int], list[Rejection]]:
    """Which positions of a cohort may stay, who is rejected and why, before any update is read."""
    keep, rejected, seen = [], [], set[str]()
    for i, (client, count) in enumerate(zip(cohort.client_ids, cohort.num_examples.tolist(), strict=True)):
        if limits.known is not None and client not in limits.known:
            reason: Note | None = Note.of("unknown_client", known=len(limits.known))
        elif client in seen:
            reason = Note.of("answered_twice")
        else:
            reason = count_fault(count)
        seen.add(client)
        if reason is None:
            keep.append(i)
        else:
            rejected.append(Rejection(client, reason))
    return keep, rejected


def enter(
    limits: Admission, cohort: Cohort, excluded: Collection[str], spread: bool, products: bool
) -> tuple[Cohort, tuple[int, ...], list[Rejection], list[Note]]:
    """The part of a cohort that may stay, with the counts that are believed and who is in good standing.

    Its updates carry the survey of them, with distances where there is to be a ``spread``; their inner ``products``
    come with it, or are begun, where somebody will ask for them. Also its positions in the cohort, who is rejected, and
    what is worth a word.
    """

    def read(part: Cohort) -> tuple[Cohort, Survey]:
        trusted = ~among(excluded, part.client_ids)
        counts = limits.clip(part.client_ids, part.num_examples)
        part = replace(part, num_examples=counts, trusted=trusted, claimed=part.num_examples)
        survey = part.updates.survey(part.reference, part.shares, spread, products)
        return replace(part, updates=part.updates.knowing(survey)), survey

    index, refused = screen(cohort, limits)
    inside, survey = read(cohort.select(index))
    idle = idle_faults(survey.sq_lengths) if inside.updates.measured else {}
    faults = size_faults(survey.sq_norms, limits.norm_ratio, idle) | idle
    if faults:
        refused += [Rejection(inside.client_ids[i], reason) for i, reason in sorted(faults.items())]
        kept = [i for i in range(len(inside)) if i not in faults]
        index = [index[i] for i in kept]
        inside, _ = read(replace(inside, num_examples=inside.claimed).select(kept))
    notes = clipped_notes(inside.client_ids, inside.claimed, inside.num_examples)
    notes += type_notes(inside.client_ids, inside.updates.types(), inside.updates.dtype)
    return inside, tuple(index), refused, notes


def size_faults(sq_norms: Norms, norm_ratio: float | None, idle: Collection[int] = ()) -> dict[int, Note]:
    """The positions whose update is not finite, or absurdly long beside the median one, and why.

    The median is of those that are not ``idle``: beside clients that sent nothing, one tiny update would be it.

    >>> print(size_faults(np.array([1.0, 4.0, 9.0, 1e12, np.nan]), norm_ratio=1000.0)[3])
    its update is 5e+05 times as long as the median one; at most 1000 times is accepted
    """
    finite = sq_norms <= LARGEST**2
    faults = {int(i): Note.of("update_not_finite", most=LARGEST) for i in np.flatnonzero(~finite)}
    norms = np.sqrt(np.where(finite, sq_norms, 0.0))
    active = finite.copy()
    active[list(idle)] = False
    typical = float(np.quantile(norms[active], 0.5, method="lower")) if active.any() else 0.0
    if norm_ratio is not None and typical > 0:
        for i in np.flatnonzero(norms > norm_ratio * typical):
            faults[int(i)] = Note.of("update_too_long", times=float(norms[i] / typical), most=norm_ratio)
    return faults


def idle_faults(sq_lengths: Norms) -> dict[int, Note]:
    """The positions that sent the model back unchanged, and the reason to count them in no average.

    >>> {i: str(fault) for i, fault in idle_faults(np.array([1.0, 0.0])).items()}
    {1: 'idle: it returned the model unchanged'}
    """
    return {int(i): Note.of("idle") for i in np.flatnonzero(sq_lengths == 0)}


def clipped_notes(client_ids: Collection[str], claimed: Counts, counted: Counts) -> list[Note]:
    """A note of every client whose example count was clipped and is more than ten times the median one.

    >>> print(*clipped_notes(["a", "b", "c"], np.array([10.0, 20.0, 1e9]), np.array([10.0, 10.0, 10.0])))
    client c: claims 1e+09 examples, counted as 10
    """
    usual = MANY * float(np.quantile(claimed, 0.5, method="lower")) if len(claimed) else 0.0
    return [
        Note.of("count_clipped", client, claimed=a, counted=b)
        for client, a, b in zip(client_ids, claimed.tolist(), counted.tolist(), strict=True)
        if a != b and a > usual
    ]


def buffer_notes(client_ids: Collection[str], shares: Weights) -> list[Note]:
    """A note of every client of whose buffers more than a tenth is far off from what most agree on.

    >>> print(*buffer_notes(["a", "b"], np.array([0.01, 0.5])))
    client b: its buffers (values that are not trained) lie far from the others', whose median is used
    """
    return [
        Note.of("buffers_far", client, share=share)
        for client, share in zip(client_ids, shares.tolist(), strict=True)
        if share > FAR
    ]


def type_notes(client_ids: Collection[str], sent: Collection[set[torch.dtype]], used: torch.dtype) -> list[Note]:
    """A note of every client that sent wider numbers than the model's, which were rounded.

    >>> print(*type_notes(["a", "b"], [{torch.float32}, {torch.float64}], torch.float32))
    client b: sent float64; converted to the model's float32
    """
    name = str(used).removeprefix("torch.")
    return [
        Note.of("dtype_rounded", client, sent="float64", dtype=name)
        for client, types in zip(client_ids, sent, strict=True)
        if used != torch.float64 and torch.float64 in types
    ]


def _kind(array: Tensor | Scaled | NDArray[Any]) -> str:
    if isinstance(array, Tensor | Scaled):
        return "complex" if array.dtype.is_complex else "floating" if array.dtype.is_floating_point else "integer"
    kinds = {"f": "floating", "i": "integer", "u": "integer", "b": "integer"}
    return kinds.get(array.dtype.kind, "other") if array.dtype.itemsize <= 8 else "other"
