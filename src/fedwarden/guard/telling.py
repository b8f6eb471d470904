"""A judged round as notes, as lines for a server's log, and as numbers beside its metrics."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from ..core.notes import DOUBTS, Note, Value
from ..core.remembered import Remembered
from ..core.stats import Mask, among
from ..core.types import RoundRecord
from ..core.words import listed
from ..history.capital import Capital
from ..history.evidence import BLANK, Evidence, lower_spread
from ..policies.turns import Turns
from ..store.round import RoundStory
from .containment import KNOWN
from .copies import AS_ONE, SHARE, Leaders
from .judge import Guard, Judgement, Memory


def lines(record: RoundRecord, known: Collection[str]) -> Iterator[str]:
    """The clients that are left out or in doubt, and why; ``known`` were out before this round."""
    for rejection in record.rejected:
        yield f"reply of client {rejection.client_id} rejected: {rejection.reason}"
    by_word = {client for note in record.notes if note.kind == "word_excluded" for client in note.clients}
    story = RoundStory(record)
    for client in [*sorted(set(record.excluded) - set(known) - by_word), *story.doubts]:
        yield str(story.reason(client))
    for note in record.notes:
        if note.kind not in DOUBTS:
            yield str(note)


def tally(record: RoundRecord) -> dict[str, float]:
    """What the metrics of a round gain."""
    return {
        "fedwarden/replies": len(record.client_ids),
        "fedwarden/rejected": len(record.rejected),
        "fedwarden/flagged": int(record.flagged.sum()),
        "fedwarden/excluded": len(record.excluded),
        "fedwarden/combined": int((record.weights > 0).sum()),
    }


def judgement_notes(
    guard: Guard,
    before: Memory,
    memory: Memory,
    judgement: Judgement,
    client_ids: Sequence[str],
    leaders: Leaders,
    details: Mapping[str, Mapping[str, Value]] | None = None,
) -> list[Note]:
    """What a judgement, and the memory before and after it, leave to be said of the round.

    ``details`` are what differs in each client in doubt, see :func:`.deviation.deviations`.
    """
    notes = [Note.of("watch", watch=w.name, cause=w.warning) for w in judgement.watches if w.warning]
    was, now = set(before.suspended), set(memory.suspended)
    changes = {
        "suspended": now - was,
        "for_good": {c for c in was - now if c in memory.excluded},
        "let_in": {c for c in was - now if c not in memory.excluded},
    }
    for kind, clients in changes.items():
        notes += [Note.of(kind, client) for client in client_ids if client in clients] if clients else []
    for i in np.flatnonzero(judgement.doubted & ~among(memory.excluded, client_ids)).tolist():
        by = [
            r
            for r, w in zip(judgement.watches, guard.watches, strict=True)
            if (r.flagged[i] and w.action == "doubt") or (judgement.harmful[i] and isinstance(w.history, Capital))
        ]
        words = listed(list(dict.fromkeys(r.words for r in by)))
        kind = "left_out" if judgement.weights[i] == 0 else "on_trial" if guard.policy.tries else ""
        if kind:
            told: dict[str, Value] = {"watches": tuple(r.name for r in by), "words": words}
            told |= {**(details or {}).get(client_ids[i], {}), **({"harmful": True} if judgement.harmful[i] else {})}
            told |= {"lone": True} if judgement.alone.any() and judgement.alone[i] else {}
            notes.append(Note(kind, (client_ids[i],), told))
    if judgement.alone.any():
        notes.append(Note.of("lone_weights", *(client_ids[i] for i in np.flatnonzero(judgement.alone).tolist())))
    copies = leaders != np.arange(len(leaders))
    for i in np.unique(leaders[copies]).tolist() if copies.any() else ():
        alike = np.flatnonzero(leaders == i).tolist()
        kind = SHARE if 2 * len(alike) <= len(leaders) else AS_ONE
        notes.append(Note.of(kind, *(client_ids[j] for j in alike), leading=alike.index(i)))
    if differ_though_alike(guard, memory, judgement.trusted, client_ids):
        notes.append(Note.of("not_alike"))
    leading = np.zeros(len(leaders), bool)
    leading[leaders[~among(memory.excluded, client_ids)]] = True
    if guard.watches and leading.sum() < guard.quorum:
        notes.append(Note.of("too_few", many=int(leading.sum()), quorum=guard.quorum))
    return notes


def differ_though_alike(guard: Guard, memory: Memory, trusted: Mask, client_ids: Sequence[str]) -> bool:
    """Whether clients said to be alike differ so much that one of twenty lies as far out as a watch takes for evidence.

        2 s > effect,   s = lower spread of the clients' mean values

    s is about the closer half, which attackers, who lie far out, do not reach. Of 20 and 40 clients on digits it was
    .06 to .10 where all hold the same mix of classes, at most .23 with 40 % attackers, and .28 to .58 with mixes of
    Dirichlet 0.1 to 1. Where all clients differ to the same degree, as with two classes each, it stays small.
    """
    policy = guard.policy
    if not isinstance(policy, Turns) or policy.most:
        return False
    for watch, state in zip(guard.watches, memory.histories, strict=True):
        if isinstance(watch.history, Evidence) and state:
            _, means, rounds = Remembered.of(state).columns(client_ids, BLANK)
            known = trusted & (rounds >= KNOWN)
            if known.sum() >= policy.few and 2 * lower_spread(means[known]) > watch.history.effect:
                return True
    return False
