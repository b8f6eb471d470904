"""What may enter a round: every reply is let in, clipped or rejected, and never without a reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.stats import Counts, Norms, Weights
from ..core.types import Cohort, Rejection
from ..updates.survey import LARGEST, Survey
from ..updates.updates import Updates
from .limits import Admission

MANY = 10.0  # times the median count from which on a claim is worth a word
SMALLEST = 1e-9  # examples that count as some: a share of less is lost in rounding, and its client is not
OVERFLOW = f"its update holds NaN, Inf or numbers too large; expected finite values and a norm of at most {LARGEST:g}"


@dataclass(frozen=True)
class Reply:
    """What one client sent: its layers (or one flat array) and how many examples it says it used."""

    client_id: str
    layers: Any
    num_examples: float


def read_layers(layers: Any, like: Sequence[Tensor]) -> list[Any] | str:
    """A reply's layers as arrays, or why they do not fit the global model's."""
    try:
        arrays = [layers] if isinstance(layers, np.ndarray | Tensor) else list(layers)
        arrays = [layer if isinstance(layer, Tensor) else np.asarray(layer) for layer in arrays]
    except (TypeError, ValueError) as error:
        return f"layers cannot be read as arrays ({error}); expected {len(like)} arrays"
    if len(arrays) != len(like):
        return f"sent {len(arrays)} layers; expected {len(like)}"
    for i, (array, want) in enumerate(zip(arrays, like, strict=True)):
        if tuple(array.shape) != tuple(want.shape):
            return f"layer {i} has shape {tuple(array.shape)}; expected {tuple(want.shape)}"
        if _kind(array) != _kind(want):
            return f"layer {i} has dtype {array.dtype}; expected {want.dtype} or another {_kind(want)} type"
        if isinstance(array, Tensor) and array.layout != torch.strided:
            return f"layer {i} has the layout {array.layout}; expected a dense array"
    return arrays


def count_fault(count: float) -> str | None:
    """Why an example count cannot be used, or None.

    >>> count_fault(-5.0)
    'claims -5 examples; expected a positive number'
    """
    if not np.isfinite(count) or count <= 0:
        return f"claims {count:g} examples; expected a positive number"
    if not SMALLEST <= count <= LARGEST:
        return f"claims {count:g} examples; expected {SMALLEST:g} to {LARGEST:g}"
    return None


def admit(
    replies: Sequence[Reply], params: Sequence[Tensor], round: int, measured: Sequence[tuple[int, int]] | None = None
) -> tuple[Cohort, tuple[Rejection, ...]]:
    """Build the cohort from raw replies of whole models; what does not fit the global model is rejected."""
    kept, rejected = [], []
    wide = {p.dtype for p in params if p.dtype.is_floating_point} == {torch.float64}
    flat = torch.cat([p.detach().reshape(-1).to(torch.float64 if wide else torch.float32) for p in params])
    for reply in replies:
        read = read_layers(reply.layers, params)
        if isinstance(read, str):
            rejected.append(Rejection(str(reply.client_id), read))
        else:
            kept.append((reply, read))
    updates = Updates.of([layers for _, layers in kept], flat, measured) if kept else Updates.empty(flat.numel())
    counts = np.array([_number(reply.num_examples) for reply, _ in kept], dtype=np.float64)
    cohort = Cohort(round, tuple(str(reply.client_id) for reply, _ in kept), updates, counts, flat)
    return cohort, tuple(rejected)


def screen(cohort: Cohort, limits: Admission) -> tuple[list[int], list[Rejection]]:
    """Which positions of a cohort may stay, who is rejected and why, before any update is read."""
    keep, rejected, seen = [], [], set[str]()
    for i, (client, count) in enumerate(zip(cohort.client_ids, cohort.num_examples.tolist(), strict=True)):
        if limits.known is not None and client not in limits.known:
            reason: str | None = f"unknown client; {len(limits.known)} clients are known"
        elif client in seen:
            reason = "answered more than once; the first reply counts"
        else:
            reason = count_fault(count)
        seen.add(client)
        if reason is None:
            keep.append(i)
        else:
            rejected.append(Rejection(client, reason))
    return keep, rejected


def enter(
    limits: Admission, cohort: Cohort, excluded: Collection[str] = ()
) -> tuple[Cohort, tuple[int, ...], list[Rejection], list[str]]:
    """The part of a cohort that may stay, with the counts that are believed and who is in good standing.

    Its updates carry the survey of them. Also its positions in the cohort, who is rejected, and what is worth a word.
    """

    def read(index: list[int]) -> tuple[Cohort, Survey]:
        part = cohort.select(index)
        trusted = np.array([c not in excluded for c in part.client_ids], dtype=bool)
        counts = limits.clip(part.client_ids, part.num_examples)
        part = replace(part, num_examples=counts, trusted=trusted, claimed=part.num_examples)
        survey = part.updates.survey(part.reference, part.shares)
        return replace(part, updates=part.updates.knowing(survey)), survey

    index, refused = screen(cohort, limits)
    inside, survey = read(index)
    faults = size_faults(survey.sq_norms, limits.norm_ratio)
    if inside.updates.measured:
        faults |= idle_faults(survey.sq_lengths)
    if faults:
        refused += [Rejection(inside.client_ids[i], reason) for i, reason in sorted(faults.items())]
        index = [k for i, k in enumerate(index) if i not in faults]
        inside, _ = read(index)
    notes = clipped_notes(inside.client_ids, inside.claimed, inside.num_examples)
    notes += type_notes(inside.client_ids, inside.updates.types(), inside.updates.dtype)
    return inside, tuple(index), refused, notes


def size_faults(sq_norms: Norms, norm_ratio: float | None) -> dict[int, str]:
    """The positions whose update is not finite, or absurdly long beside the median one, and why.

    >>> size_faults(np.array([1.0, 4.0, 9.0, 1e12, np.nan]), norm_ratio=1000.0)[3]
    'its update is 5e+05 times as long as the median one; at most 1000 times is let in'
    """
    finite = sq_norms <= LARGEST**2
    faults = {int(i): OVERFLOW for i in np.flatnonzero(~finite)}
    norms = np.sqrt(np.where(finite, sq_norms, 0.0))
    typical = float(np.quantile(norms[finite], 0.5, method="lower")) if finite.any() else 0.0
    if norm_ratio is not None and typical > 0:
        for i in np.flatnonzero(norms > norm_ratio * typical):
            faults[int(i)] = (
                f"its update is {norms[i] / typical:.3g} times as long as the median one; "
                f"at most {norm_ratio:g} times is let in"
            )
    return faults


def idle_faults(sq_lengths: Norms) -> dict[int, str]:
    """The positions that sent the model back unchanged, and the reason to count them in no average.

    >>> idle_faults(np.array([1.0, 0.0]))
    {1: 'idle: it returned the model unchanged'}
    """
    return {int(i): "idle: it returned the model unchanged" for i in np.flatnonzero(sq_lengths == 0)}


def clipped_notes(client_ids: Collection[str], claimed: Counts, counted: Counts) -> list[str]:
    """One line for every client whose example count was clipped and is more than ten times the median one.

    >>> clipped_notes(["a", "b", "c"], np.array([10.0, 20.0, 1e9]), np.array([10.0, 10.0, 10.0]))
    ['client c: claims 1e+09 examples, counted as 10']
    """
    usual = MANY * float(np.quantile(claimed, 0.5, method="lower")) if len(claimed) else 0.0
    return [
        f"client {client}: claims {a:g} examples, counted as {b:g}"
        for client, a, b in zip(client_ids, claimed.tolist(), counted.tolist(), strict=True)
        if a != b and a > usual
    ]


def buffer_notes(client_ids: Collection[str], shares: Weights) -> list[str]:
    """One line for every client of whose buffers more than a tenth is far off: a few far values are nobody's fault.

    >>> buffer_notes(["a", "b"], np.array([0.01, 0.5]))
    ["client b: its buffers (values that are not trained) lie far from the others', whose median counts"]
    """
    return [
        f"client {client}: its buffers (values that are not trained) lie far from the others', whose median counts"
        for client, share in zip(client_ids, shares.tolist(), strict=True)
        if share > 0.1
    ]


def type_notes(client_ids: Collection[str], sent: Collection[set[torch.dtype]], used: torch.dtype) -> list[str]:
    """One line for every client that sent wider numbers than the model's, which were rounded.

    >>> type_notes(["a", "b"], [{torch.float32}, {torch.float64}], torch.float32)
    ["client b: sent float64; the model's float32 counts"]
    """
    name = str(used).removeprefix("torch.")
    return [
        f"client {client}: sent float64; the model's {name} counts"
        for client, types in zip(client_ids, sent, strict=True)
        if used != torch.float64 and torch.float64 in types
    ]


def _number(count: Any) -> float:
    try:
        return float(count)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _kind(array: Tensor | NDArray[Any]) -> str:
    if isinstance(array, Tensor):
        return "complex" if array.is_complex() else "floating" if array.dtype.is_floating_point else "integer"
    kinds = {"f": "floating", "i": "integer", "u": "integer", "b": "integer"}
    return kinds.get(array.dtype.kind, "other") if array.dtype.itemsize <= 8 else "other"
