"""Clients that are different, and against which no harm was measured: which they are, and the sentence about one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ..core.notes import DOUBTS, Note
from ..core.words import listed, spelt
from .series import Series
from .word import NOTES

RECENT = 10  # last rounds of a client, which tell whether it is different, and whether it ended up in the model
CLEARED = (NOTES["trust"], NOTES["readmit"])  # what the operator says that ends a doubt


def harm_not_shown(client: str, note: Note, run: int | None = None) -> str:
    """What is said of a client in doubt, from the note of its last round of doubt; nothing where harm was measured.

    ``run`` is one that goes on, in which the client can be trusted; without it, that is for the next one.

    >>> note = Note.of("on_trial", "a", words="its update lies far out", layer="fc.weight", layers=4, share=0.62,
    ...                usual=0.21, teaches=(3,))
    >>> print(harm_not_shown("a", note, 7))
    Client a is different, harm not shown: its update lies far out; 62 % of its deviation lies in layer fc.weight, where
    the median client has 21 %; it teaches class 3, which hardly any other client does. If you know why it differs, run
    `fedwarden trust 7 a`.
    """
    if note.values.get("harmful"):
        return ""
    what = "; ".join(_differences(note.values)) or "a watch flagged it"
    trust = f"set guard.trusted = [{client!r}] for the next run"
    trust = trust if run is None else f"run `fedwarden trust {run} {spelt(client)}`"
    return f"Client {client} is different, harm not shown: {what}. If you know why it differs, {trust}."


def different(series: Series) -> dict[str, Note]:
    """The clients that are in doubt now, or were in half of their last rounds, with the note of their last doubt.

    Harm that was measured in one of these rounds, and what the operator says of a client, take it off the list.
    """
    doubts: dict[str, dict[int, Note]] = {}
    for t, note in series.notes:
        for client in note.clients:
            if note.kind in DOUBTS:
                doubts.setdefault(client, {})[t] = note
            elif note.kind in CLEARED:
                doubts.pop(client, None)
    place = {client: j for j, client in enumerate(series.clients)}
    found = {}
    for client in doubts.keys() & place.keys():
        took = series.rounds[~np.isnan(series.weights[:, place[client]])][-RECENT:].tolist()
        seen = [doubts[client][t] for t in took if t in doubts[client]]
        now = bool(took) and took[-1] in doubts[client]
        if seen and (now or 2 * len(seen) >= len(took)) and not any(note.values.get("harmful") for note in seen):
            found[client] = seen[-1]
    return found


def _differences(values: Mapping[str, object]) -> Iterator[str]:
    """What differs, as far as it was found."""
    if words := values.get("words"):
        yield str(words)
    layer, share, usual = (values.get(name) for name in ("layer", "share", "usual"))
    if isinstance(share, float) and isinstance(usual, float):
        where = f"layer {layer}" if isinstance(layer, str) else f"part {layer} of {values.get('layers')} of the model"
        yield f"{100 * share:.0f} % of its deviation lies in {where}, where the median client has {100 * usual:.0f} %"
    for verb in ("teaches", "unlearns"):
        classes = values.get(verb)
        if isinstance(classes, Sequence) and len(classes):
            word = "classes" if len(classes) > 1 else "class"
            yield f"it {verb} {word} {listed([str(c) for c in classes])}, which hardly any other client does"
    if values.get("lone"):
        yield "weights that it alone moves lead to one class, as those of a backdoor do, and are left out"
