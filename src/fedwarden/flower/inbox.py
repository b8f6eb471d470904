"""The replies of a round: who sent them, which can be used, and the numbers a strategy will weigh them by."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from flwr.app import Array, Message
from numpy.typing import NDArray
from torch import Tensor

from ..admission import Admission, clip_counts, count_fault
from ..core.stats import Mask, Scores
from ..core.types import Cohort, Rejection
from ..core.updates import Updates
from .records import Template, Unfit, arrays_of, cast, metrics_of, number, odd_ones, spoken, view

Name = Callable[[int], str]


@dataclass(frozen=True, eq=False)
class Letter:
    """A reply that can be read: from whom, its arrays in place, and how many examples it claims."""

    client_id: str
    message: Message
    layers: list[NDArray[Any]]
    count: float


def match(
    sent: Sequence[Message], replies: Iterable[Message], name: Name
) -> tuple[list[tuple[str, Message]], list[Rejection]]:
    """Each reply with the client that was asked, and who answered unasked or not at all.

    The error of a dead node carries the SuperLink's id, so replies are matched to the messages they answer.
    """
    nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in sent if m.metadata.message_id}
    asked = {m.metadata.dst_node_id for m in sent}
    found, refused, heard = [], [], set[int]()
    for reply in replies:
        node = nodes.get(reply.metadata.reply_to_message_id, reply.metadata.src_node_id)
        heard.add(node)
        if node in asked:
            found.append((name(node), reply))
        else:
            refused.append(Rejection(name(node), "answered without being asked"))
    silent = [Rejection(name(node), "did not answer in time") for node in sorted(asked - heard)]
    return found, refused + silent


def open_letters(
    found: Iterable[tuple[str, Message]], template: Template, key: str
) -> tuple[list[Letter], list[Rejection]]:
    """The replies whose arrays fit the model and whose metrics are alike, and the others with the reason."""
    letters: list[Letter] = []
    refused = []
    for client, message in found:
        try:
            spoken(message)
            record = arrays_of(message)
            letter = Letter(client, message, template.read(record), number(metrics_of(message).get(key)))
        except Unfit as error:
            refused.append(Rejection(client, str(error)))
            continue
        if tuple(record) != template.names:  # some strategies read arrays by position
            for array in template.names:
                record[array] = record.pop(array)
        letters.append(letter)
    odd = odd_ones([letter.message for letter in letters])
    refused += [Rejection(letters[i].client_id, reason) for i, reason in odd.items()]
    return [letter for i, letter in enumerate(letters) if i not in odd], refused


def cohort_of(letters: Sequence[Letter], template: Template, params: Tensor, round: int) -> Cohort:
    """The cohort of a round; its rows are the bytes that arrived."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # no row is written to
        rows = [[torch.from_numpy(a) if a.dtype.isnative else a for a in letter.layers] for letter in letters]
    updates = Updates.of(rows, params, template.measured) if rows else Updates.empty(params.numel())
    ids = tuple(letter.client_id for letter in letters)
    return Cohort(round, ids, updates, np.array([letter.count for letter in letters]), params)


def mend(letters: Sequence[Letter], template: Template, updates: Updates, kept: Mask, limit: float) -> None:
    """Cut the buffers of the replies that are kept, as a warden does where it combines them itself."""
    bounded, cut = updates.bounded(limit, kept)
    loose = {segment.start: segment.rows for segment in bounded.segments if not segment.measured}
    for i in np.flatnonzero(kept & (cut > 0)).tolist():
        record, start = arrays_of(letters[i].message), 0
        for name, shape in zip(template.names, template.shapes, strict=True):
            size = math.prod(shape)
            if start in loose and size:
                values = cast(loose[start][i].numpy(), view(record[name]).dtype)
                record[name] = Array(np.asarray(values).reshape(shape))
            start += size


def weigh(messages: Sequence[Message], counts: Scores, key: str, loss_key: str | None, ratio: float | None) -> None:
    """Set the numbers that a strategy weighs by: examples as counted, and losses no farther from the median than ratio.

    A strategy such as q-FedAvg weighs by the loss that a client claims.
    """
    metrics = [metrics_of(message) for message in messages]
    for record, count in zip(metrics, counts.tolist(), strict=True):
        if record[key] != count:
            record[key] = count
    if loss_key is not None and ratio is not None and metrics and all(loss_key in m for m in metrics):
        losses = np.array([number(m[loss_key]) for m in metrics])
        middle = max(float(np.quantile(losses, 0.5, method="lower")), 0.0)
        for record, loss in zip(metrics, np.clip(losses, middle / ratio, middle * ratio).tolist(), strict=True):
            record[loss_key] = loss


def evaluations(
    found: Iterable[tuple[str, Message]], key: str, limits: Admission
) -> tuple[list[Message], list[Rejection]]:
    """The evaluations that can be averaged, their counts clipped, and the others with the reason."""
    kept: list[tuple[str, Message]] = []
    refused, seen = [], set[str]()
    for client, message in found:
        try:
            spoken(message)
            fault = count_fault(number(metrics_of(message).get(key)))
            if fault or client in seen:
                raise Unfit(fault or "answered more than once; the first reply counts")
            kept.append((client, message))
        except Unfit as error:
            refused.append(Rejection(client, str(error)))
        seen.add(client)
    odd = odd_ones([message for _, message in kept])
    refused += [Rejection(kept[i][0], reason) for i, reason in odd.items()]
    messages = [message for i, (_, message) in enumerate(kept) if i not in odd]
    counts = np.array([number(metrics_of(message)[key]) for message in messages])
    weigh(messages, clip_counts(counts, limits.count_ratio, limits.max_share), key, None, None)
    return messages, refused
