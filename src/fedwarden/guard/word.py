"""How a guard obeys the operator's word: before it judges a round, and in what it makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..core.protocols import FOR_GOOD
from ..core.stats import Mask, among
from ..core.types import Word
from .judge import Guard, Judgement, Memory, restored


def heard(word: Word, guard: Guard) -> Word:
    """The word as a guard hears it: with the clients that it trusts itself, and suspensions if its policy has any."""
    suspended = word.suspended if guard.policy.suspends else frozenset[str]()
    return replace(word, trusted=word.trusted | guard.trusted, suspended=suspended)


def free(word: Word, client_ids: Sequence[str]) -> Mask:
    """The clients that no watch may act on: those trusted, or all of them while observing, but none excluded by word.

    >>> free(Word(trusted=frozenset("ab"), excluded=frozenset("b")), "abc").tolist()
    [True, False, False]
    """
    inside = np.ones(len(client_ids), bool) if word.observing else among(word.trusted, client_ids)
    return inside & ~among(word.excluded, client_ids)


def obey(word: Word, memory: Memory) -> Memory:
    """What a guard remembers as it begins a round: exclusions as the word has them, and no evidence that it cleared.

    >>> memory = Memory(({"a": (2.0,), "b": (3.0,)},), (0,), {"a": 0, "b": -1})
    >>> after = obey(Word(excluded=frozenset("c"), readmitted=frozenset("b")), memory)
    >>> after.histories, after.excluded
    (({'a': (2.0,)},), {'a': 0, 'c': -1})
    """
    memory = replace(memory, excluded=exclusions(word, memory.excluded))
    if not word.readmitted:
        return memory
    histories = tuple(restored(state, {}, word.readmitted) for state in memory.histories)
    return replace(memory, histories=histories, doubted=memory.doubted - word.readmitted)


def exclusions(word: Word, excluded: Mapping[str, int]) -> Mapping[str, int]:
    """The exclusions that a word leaves of those a policy has made, and its own.

    >>> exclusions(Word(trusted=frozenset("a"), excluded=frozenset("c")), {"a": -1, "b": 0})
    {'b': 0, 'c': -1}
    """
    back = excluded if word.observing else word.readmitted | word.trusted
    kept = {client: clean for client, clean in excluded.items() if client not in back}
    held = dict.fromkeys(sorted(word.suspended - word.trusted - kept.keys()), 0)
    return {**kept, **held, **dict.fromkeys(sorted(word.excluded), FOR_GOOD)}


def overrule(word: Word, memory: Memory, judgement: Judgement, client_ids: Sequence[str]) -> tuple[Memory, Judgement]:
    """A judged round with the word's exclusions, and with full weight for the clients that no watch may act on.

    A client that stands out stays flagged, and is in no doubt.
    """
    word = replace(
        word, readmitted=frozenset(), suspended=frozenset()
    )  # on the evidence of this round a watch may exclude it again
    freed, out = free(word, client_ids), among(word.excluded, client_ids)
    weights = np.where(freed, 1.0, np.where(out, 0.0, judgement.weights)) if (freed | out).any() else judgement.weights
    judgement = replace(
        judgement,
        flagged=judgement.flagged | (judgement.doubted & freed),
        doubted=judgement.doubted & ~freed,
        alone=judgement.alone & ~freed if len(judgement.alone) else judgement.alone,
        weights=weights,
        freed=freed,
    )
    hearings = memory.hearings.without({client_ids[i] for i in np.flatnonzero(freed | out).tolist()})
    return replace(memory, excluded=exclusions(word, memory.excluded), hearings=hearings), judgement
