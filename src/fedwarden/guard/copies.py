"""Clients that sent the same: measured by one of them, with one vote for all, each held for its own evidence."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..core.notes import Note
from ..core.stats import Counts, Weights
from ..core.types import Reading

Leaders = NDArray[np.int_]
"""Position of the client that each one copies; its own if none."""
SHARE, AS_ONE = "copies_share", "copies_as_one"  # notes of them: fewer than half of a round, and more
APART = "copies_apart"  # where they do not share a vote


def of_leaders(reading: Reading, leaders: Leaders, weights_only: bool) -> Reading:
    """A signal in which every copy has its leader's value; where that is of more than weights, its own if it is less.

    The two are alike in their weights alone: in its buffers a leader may be what its copies are not. By their weights
    copies look closer to the others than their leader, which is one of the others to them. What is no number is larger.

    >>> found, leaders = Reading(np.array([3.0, 1.0, 5.0, np.nan])), np.array([0, 0, 0, 0])
    >>> [of_leaders(found, leaders, weights_only).values.tolist() for weights_only in (True, False)]
    [[3.0, 3.0, 3.0, 3.0], [3.0, 1.0, 3.0, 3.0]]
    """
    values = reading.values
    own = ((values <= values[leaders]) | np.isnan(values[leaders])) & (not weights_only)
    parts = {name: np.where(own, part, part[leaders]) for name, part in reading.parts.items()}
    return replace(reading, values=np.where(own, values, values[leaders]), parts=parts)


def claims(claimed: Counts, leaders: Leaders) -> Counts:
    """Claimed counts in which copies have the largest of theirs: who copies a client must not take its excuse away.

    >>> claims(np.array([1.0, 300.0, 50.0]), np.array([0, 0, 2])).tolist()
    [300.0, 300.0, 50.0]
    """
    most = np.zeros(len(claimed))
    np.maximum.at(most, leaders, claimed)
    return most[leaders]


def one_vote(weights: Weights, counts: Counts, leaders: Leaders) -> tuple[Weights, Counts]:
    """Weights and counts in which the first of some copies that are in the model stands for all of them.

    Its count is the largest of theirs: whoever copies a client must not take weight from it. More than half of all have
    an honest client among them, whose update may count for all of them.

    >>> one_vote(np.array([0.0, 1.0, 1.0, 1.0, 1.0, 1.0]), np.arange(6.0), np.array([0, 0, 0, 3, 4, 5]))
    (array([0., 1., 0., 1., 1., 1.]), array([0., 2., 2., 3., 4., 5.]))
    """
    weights, counts = weights.copy(), counts.copy()
    if (leaders == np.arange(len(leaders))).all():  # as in most rounds: nobody copies
        return weights, counts
    found, members = np.unique(leaders, return_counts=True)
    for leader in found[members > 1]:
        alike = leaders == leader
        group = np.flatnonzero(alike & (weights > 0))
        if len(group) > 1 and 2 * alike.sum() <= len(leaders):
            counts[group[0]] = counts[group].max()
            weights[group[1:]] = 0.0
    return weights, counts


def told_leaders(notes: Sequence[Note], client_ids: Sequence[str], excluded: Container[str]) -> Leaders:
    """Which client each one copies, by the round's notes; one in good standing leads.

    >>> notes = [Note.of("copies_share", "b", "c", "d", leading=1)]
    >>> told_leaders(notes, "abcd", excluded=()).tolist(), told_leaders(notes, "abcd", excluded="c").tolist()
    ([0, 2, 2, 2], [0, 1, 1, 1])
    """
    leaders = np.arange(len(client_ids))
    for note in notes:
        if note.kind in (SHARE, AS_ONE):
            alike, place = set(note.clients), note.values.get("leading")
            leading = dict(enumerate(note.clients)).get(place) if isinstance(place, int) else None
            places = [i for i, client in enumerate(client_ids) if client in alike]
            ranks = [(client_ids[i] in excluded, client_ids[i] != leading, i) for i in places]
            leaders[places] = min(ranks, default=(0,))[-1]
    return leaders
