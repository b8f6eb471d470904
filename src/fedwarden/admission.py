"""What may enter a round: every reply is let in, clipped or rejected, and never without a reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .core.stats import Scores
from .core.types import Cohort, Rejection
from .core.updates import LARGEST, Updates

OVERFLOW = f"its update holds NaN, Inf or numbers too large; expected finite values and a norm of at most {LARGEST:g}"


@dataclass(frozen=True)
class Reply:
    """What one client sent: its layers (or one flat array) and how many examples it says it used."""

    client_id: str
    layers: Any
    num_examples: float


@dataclass(frozen=True)
class Admission:
    """The limits of what is let in.

    A client's example count is clipped to ``count_ratio`` times the cohort's median count, and its share of the
    total weight to ``max_share``. An update more than ``norm_ratio`` times as long as the median one is rejected.
    What is not measured, such as BatchNorm's statistics, is cut ``buffer_limit`` median absolute deviations from the
    median. ``known`` restricts who may answer.
    """

    count_ratio: float | None = 10.0
    max_share: float | None = None
    known: frozenset[str] | None = None
    norm_ratio: float | None = 1000.0
    buffer_limit: float | None = 6.0

    def __post_init__(self) -> None:
        if self.count_ratio is not None and not self.count_ratio >= 1:
            raise ValueError(f"count_ratio is at least 1, or none; got {self.count_ratio}")
        if self.max_share is not None and not 0 < self.max_share <= 1:
            raise ValueError(f"max_share lies in (0, 1], or none; got {self.max_share}")
        if self.norm_ratio is not None and not self.norm_ratio > 1:
            raise ValueError(f"norm_ratio is more than 1, or none; got {self.norm_ratio}")
        if self.buffer_limit is not None and not self.buffer_limit >= 0:
            raise ValueError(f"buffer_limit is at least 0, or none; got {self.buffer_limit}")


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
    return None


def clip_counts(counts: Scores, count_ratio: float | None, max_share: float | None) -> Scores:
    """Counts that no client can use to own the model.

        c_i <- min(c_i, count_ratio * lower median(c));   then the largest c with c_i <= max_share * sum(c)

    A share below 1/n cannot be kept: everybody then gets the same.

    >>> clip_counts(np.array([10.0, 10.0, 20.0, 1e9]), count_ratio=10.0, max_share=None).tolist()
    [10.0, 10.0, 20.0, 100.0]
    >>> clip_counts(np.array([10.0, 10.0, 20.0, 1e9]), count_ratio=None, max_share=0.5).tolist()
    [10.0, 10.0, 20.0, 40.0]
    """
    clipped = counts.astype(np.float64)
    if count_ratio is not None and len(clipped):
        clipped = np.minimum(clipped, count_ratio * np.quantile(clipped, 0.5, method="lower"))
    if max_share is None or not len(clipped) or clipped.max() <= max_share * clipped.sum():
        return clipped
    ordered = np.sort(clipped)[::-1]
    for k in range(1, len(ordered)):
        # with the k largest cut to one value v, v = share * (k v + the rest)
        if k * max_share < 1 and (v := max_share * ordered[k:].sum() / (1 - k * max_share)) >= ordered[k]:
            return np.asarray(np.minimum(clipped, v), dtype=np.float64)
    return np.full(len(clipped), ordered[-1])


def admit(
    replies: Sequence[Reply], params: Sequence[Tensor], round: int, measured: Sequence[tuple[int, int]] | None = None
) -> tuple[Cohort, tuple[Rejection, ...]]:
    """Build the cohort from raw replies of whole models; what does not fit the global model is rejected."""
    kept, rejected = [], []
    flat = torch.cat([p.detach().reshape(-1).to(torch.float32) for p in params])
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


def screen(cohort: Cohort, limits: Admission) -> tuple[NDArray[np.int_], list[Rejection]]:
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
    return np.array(keep, dtype=int), rejected


def size_faults(sq_norms: Scores, norm_ratio: float | None) -> dict[int, str]:
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


def clipped_notes(client_ids: Collection[str], claimed: Scores, counted: Scores) -> list[str]:
    """One line for every client whose example count was clipped."""
    return [
        f"client {client}: claims {a:g} examples, counted as {b:g}"
        for client, a, b in zip(client_ids, claimed.tolist(), counted.tolist(), strict=True)
        if a != b
    ]


def cut_notes(client_ids: Collection[str], shares: Scores) -> list[str]:
    """One line for every client of whose buffers more than a tenth was cut: a few far values are nobody's fault.

    >>> cut_notes(["a", "b"], np.array([0.01, 0.5]))
    ['client b: 50% of its buffers (values that are not trained) lie far from those of the others and were cut']
    """
    return [
        f"client {client}: {share:.0%} of its buffers (values that are not trained) lie far from those of the others "
        "and were cut"
        for client, share in zip(client_ids, shares.tolist(), strict=True)
        if share > 0.1
    ]


def _number(count: Any) -> float:
    try:
        return float(count)
    except (TypeError, ValueError, OverflowError):
        return float("nan")


def _kind(array: Any) -> str:
    if isinstance(array, Tensor):
        return "complex" if array.is_complex() else "floating" if array.dtype.is_floating_point else "integer"
    kinds = {"f": "floating", "i": "integer", "u": "integer", "b": "integer"}
    return kinds.get(array.dtype.kind, "other") if array.dtype.itemsize <= 8 else "other"
