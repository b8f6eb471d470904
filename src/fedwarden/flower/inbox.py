"""The replies of a round: who sent them, which can be used, and the numbers a strategy will weigh them by."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord
from numpy.typing import NDArray
from torch import Tensor

from ..core.notes import Note
from ..core.reported import BYTES, SECONDS, told
from ..core.stats import Counts
from ..core.types import Rejection, Reported
from ..guard.adapters import Adapters
from ..guard.admission import read_each
from ..guard.arrays import Converted, Scaled, Unfit, attempt, cast, whole
from ..guard.decide import Decision
from ..guard.limits import Admission
from ..guard.metrics import bounded
from ..models.trial import below_zero
from ..updates.segments import Segment, pieces
from ..updates.updates import Updates
from .names import Names
from .records import Form, Made, Slot, Stored, Template, answered, arrays_of, form, metrics_of, odd_ones, size_of, view

PART = 1 << 20  # columns of a row that are read at a time
LOSSES = 10.0  # times the median loss, or a part of it, that a loss counts as at most


@dataclass(frozen=True, eq=False)
class Letter:
    """A reply that can be read: from whom, its records in place, and how many examples it claims."""

    client_id: str
    message: Message
    metrics: MetricRecord
    count: float
    form: Form
    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    layers: Sequence[NDArray[Any] | Scaled] = ()
    converted: Converted = field(default_factory=Converted)
    size: int = 0


def match(
    sent: Sequence[Message],
    replies: Iterable[Message],
    name: Names,
    unreadable: Mapping[str, Note],
    settle: bool = True,
) -> tuple[list[tuple[str, Message]], list[Rejection], list[Note]]:
    """Each reply with the client that was asked, who answered unasked or not at all, and notes on their names.

    ``unreadable`` says of messages why their replies did not come through. Names are settled by replies that train:
    what is learned there is in the checkpoint of the round.
    """
    nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in sent if m.metadata.message_id}
    asked = {m.metadata.dst_node_id for m in sent}
    found, refused, heard, notes = [], [], set[int](), list[Note]()
    for reply in replies:
        node = attempt("unknown", partial(sender, reply, nodes, asked))
        if isinstance(node, Rejection):
            refused.append(node)
        else:
            heard.add(node)
            if settle and (note := name.learn(node, reply, asked)):
                notes.append(note)
            found.append((name(node), reply))
    if unnamed := [client for note in notes if note.kind == "name_missing" for client in note.clients]:
        notes = [
            *(n for n in notes if n.kind != "name_missing"),
            Note.of("name_missing", *sorted(unnamed), key=name.key),
        ]
    why = {nodes[message]: reason for message, reason in unreadable.items() if message in nodes}
    refused += [Rejection(name(node), why.get(node) or Note.of("no_answer")) for node in sorted(asked - heard)]
    return found, refused, notes


def sender(reply: Message, nodes: Mapping[str, int], asked: set[int]) -> int:
    """The node that a reply is from, or :class:`Unfit` where what it says of itself does not agree.

    The error of a dead node carries the SuperLink's id, so replies are matched to the messages they answer. It is
    not known which node forged a sender, so no node is blamed for it by name.
    """
    source = int(reply.metadata.src_node_id)
    node = nodes.get(reply.metadata.reply_to_message_id) if nodes else source
    if node is None or node not in asked:
        raise Unfit.of("not_asked", node=source)
    if node != source and (source in asked or reply.has_content()):
        raise Unfit.of("other_name", asked=node, node=source)
    return node


def open_letters(
    found: Iterable[tuple[str, Message]],
    template: Template | None,
    key: str,
    server: ArrayRecord | None = None,
    adapters: Adapters | None = None,
) -> tuple[list[Letter], list[Rejection]]:
    """The replies that can be read and are named alike, and the others with the reason.

    With a template their arrays fit the model, the ``server``'s in place of what stays at the client; without one they
    are evaluations, which have none. Each client has one reply, so that nobody outvotes the others on how replies are
    named.
    """
    letters, refused = read_each(found, partial(read_letter, template, key, server or ArrayRecord(), adapters))
    odd = odd_ones([letter.form for letter in letters])
    if template is not None:
        for i, negative in enumerate([below_zero(template.names, letter.layers) for letter in letters]):
            for array, lowest in negative.items():
                odd[i] = Note.of("array", array=array, cause=Note.of("array_variance", lowest=lowest))
    refused += [Rejection(letters[i].client_id, reason) for i, reason in odd.items()]
    return [letter for i, letter in enumerate(letters) if i not in odd], refused


def read_letter(
    template: Template | None, key: str, server: ArrayRecord, adapters: Adapters | None, client: str, message: Message
) -> Letter:
    """A reply in the form of the model, or :class:`Unfit`; its ``adapters`` may have ranks of their own."""
    answered(message)
    metrics = metrics_of(message)
    claimed = metrics.get(key)
    count = float(claimed) if isinstance(claimed, int | float) else math.nan
    letter = Letter(client, message, metrics, count, form(message, metrics))
    if template is None:
        return letter
    place, record = arrays_of(message)
    shared = template.shared(record, server)
    if adapters is None:
        settled, converted, layers = template.read(shared)
    else:
        shapes = {name: view(shared[name]).shape for name in adapters.firsts(template.names) if name in shared}
        template = replace(template, slots=tuple(adapters.ranked(template.slots, shapes)))
        settled, converted = template.settle(shared)
        layers = [*template.layers(settled)]
        adapters.check(template.names, layers)
    message.content[place] = settled  # some strategies read arrays by position, and all believe their headers
    size = sum(map(size_of, record.values()))
    return replace(letter, arrays=settled, layers=layers, converted=converted, size=size)


def rebased(
    letters: Sequence[Letter], template: Template, arrays: ArrayRecord, sent: Mapping[str, ArrayRecord]
) -> list[Letter]:
    """The replies as if all nodes had been sent these arrays; ``sent`` has those of clients that were sent others.

    A reply less what was sent comes first, so that a node that returns its model unchanged has an update of zeros. What
    is not measured, such as running statistics, is no change of the model that was sent, and stays as it came.
    """
    made = []
    for letter in letters:
        if letter.client_id in sent:
            own = sent[letter.client_id]
            for slot, layer in zip(template.slots, letter.layers, strict=True):
                if slot.dtype.kind == "f" and not slot.name.endswith(template.buffers):
                    reply = whole(layer, slot) if isinstance(layer, Scaled) else layer
                    start, base = (view(record[slot.name]) for record in (own, arrays))
                    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is rejected later
                        letter.arrays[slot.name] = Array(np.asarray(reply - start + base))
            letter = replace(letter, layers=template.layers(letter.arrays))
        made.append(letter)
    return made


def told_in(letters: Sequence[Letter], prefix: str, known: Collection[str]) -> Reported:
    """The numbers that clients report beside what is ``known`` to be none, such as counts, before any is bounded."""
    numbers = {
        letter.client_id: {k: float(v) for k, v in letter.metrics.items() if k not in known and not isinstance(v, list)}
        for letter in letters
    }
    return told(prefix, numbers.items())


def seen_of(letters: Sequence[Letter], sent: Sequence[Message], arrived: Mapping[str, float] | None = None) -> Reported:
    """What a server sees of the replies: their bytes, and the seconds from the message to them.

    ``arrived`` are seconds by message on the server's own clock; without it, as in a simulation on one machine, the
    times at which messages say that they were made.
    """
    began = {m.metadata.message_id: m.metadata.created_at for m in sent}
    seconds = {}
    for letter in letters:
        answers = letter.message.metadata.reply_to_message_id
        if arrived is not None:
            seconds[letter.client_id] = arrived.get(answers, math.nan)
        elif answers in began:
            seconds[letter.client_id] = max(0.0, letter.message.metadata.created_at - began[answers])
    sizes = {letter.client_id: float(letter.size) for letter in letters}
    return {SECONDS: {c: s for c, s in seconds.items() if math.isfinite(s)}, BYTES: sizes} if letters else {}


def hand_over(letters: Sequence[Letter], template: Template, decision: Decision) -> None:
    """Change the replies that a strategy will combine as a warden changes the rows that it combines itself.

    They get the buffers that most agree on, and the rows of the decision where these are not as they came.
    """
    updates, rows = decision.cohort.updates, decision.rows
    base = torch.zeros(updates.d, dtype=updates.dtype) if updates.base is None else updates.base
    agreed = decision.buffers.split([b - a for a, b in updates.buffers]) if len(decision.buffers) else ()
    loose = dict(zip([start for start, _ in updates.buffers], agreed, strict=False))
    kept = decision.kept
    changed = kept & decision.changed
    filled = [i for i, size in enumerate(template.sizes) if size]
    for letter, i in zip(letters, np.flatnonzero(kept).tolist(), strict=True):
        made = rows.select([i]) if changed[i] else rows
        for place, segment in zip(filled, made.segments, strict=True):  # one at a time, so that few are held twice
            slot, layer = template.slots[place], letter.layers[place]
            span = slice(segment.start, segment.stop)
            if segment.start in loose:
                make = partial(_cast, base[span] + loose[segment.start], slot)
            elif changed[i] and segment.measured:
                make = partial(_moved, base[span], made, segment, slot)
            elif isinstance(layer, Scaled):  # a strategy reads whole arrays
                make = partial(whole, layer, slot)
            else:
                continue
            stored = isinstance(letter.arrays[slot.name], Stored | Made)
            letter.arrays[slot.name] = Made(slot, make) if stored else Array(make())


def _moved(base: Tensor, row: Updates, segment: Segment, slot: Slot) -> NDArray[Any]:
    """A layer of the model with that of a row on top of it, a part at a time."""
    new = base.to(torch.promote_types(base.dtype, row.dtype), copy=True)
    for _, start, stop in pieces([segment], PART, row.maps):
        new[start - segment.start : stop - segment.start] += row.block(segment, start, stop)[0]
    return _cast(new, slot)


def _cast(numbers: Tensor, slot: Slot) -> NDArray[Any]:
    return np.asarray(cast(numbers.numpy(), slot.dtype)).reshape(slot.shape)


def weigh(letters: Sequence[Letter], counts: Counts, key: str, loss_key: str | None = None) -> None:
    """Set the numbers that a strategy weighs by: examples as counted, and losses not too far from the median.

    A strategy such as q-FedAvg weighs by the loss that a client claims.
    """
    metrics = [letter.metrics for letter in letters]
    for record, count in zip(metrics, counts.tolist(), strict=True):
        if record[key] != count:
            record[key] = count
    if loss_key is not None and metrics and all(loss_key in m for m in metrics):
        losses = np.array([m[loss_key] for m in metrics], dtype=np.float64)
        middle = max(float(np.quantile(losses, 0.5, method="lower")), 0.0)
        for record, loss in zip(metrics, np.clip(losses, middle / LOSSES, middle * LOSSES).tolist(), strict=True):
            record[loss_key] = loss


def bound_metrics(letters: Sequence[Letter], key: str) -> list[Note]:
    """Cut what lies absurdly far beyond the others' metrics, all but the count; a note of every one that was cut."""
    notes: list[Note] = []
    for name in [k for k in (letters[0].metrics if letters else ()) if k != key]:
        values = np.array([np.atleast_1d(np.asarray(x.metrics[name], dtype=np.float64)) for x in letters])
        kept, found = bounded(name, [letter.client_id for letter in letters], values)
        notes += found
        for i in np.flatnonzero((kept != values).any(axis=1)).tolist():
            record = letters[i].metrics
            record[name] = kept[i].tolist() if isinstance(record[name], list) else float(kept[i, 0])
    return notes


def evaluations(
    found: Iterable[tuple[str, Message]], key: str, limits: Admission, name: str = ""
) -> tuple[list[Message], list[Rejection], list[Note], Reported]:
    """The evaluations that can be averaged, their counts and metrics bounded, the others with the reason, and notes;
    last, what each client told beside its ``name``."""
    letters, refused = open_letters(found, None, key)
    reported = told_in(letters, "evaluate/", {key, name})
    counts = np.array([letter.count for letter in letters])
    weigh(letters, limits.clip([letter.client_id for letter in letters], counts), key)
    return [letter.message for letter in letters], refused, bound_metrics(letters, key), reported
