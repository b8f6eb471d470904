"""Decide again from recorded signals, without training: a what-if on what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from ..core.errors import ConfigError
from ..core.reported import STALENESS
from ..core.stats import Mask, scatter
from ..core.types import NO_WORD, Reading, RoundRecord, WatchRecord, Word
from .config import spell
from .copies import told_leaders
from .judge import Watch, judge, usual
from .telling import judgement_notes
from .warden import Warden
from .word import heard, obey, overrule

FACTS = ("agreement",)  # metrics of a round that a signal has measured
OF_SIGNALS = ("few_report", "probe_lacks")  # warnings of signals; those of rules are theirs to give again


def replay(
    records: Sequence[RoundRecord],
    warden: Warden,
    sources: Sequence[str] | None = None,
    word_in: Callable[[int], Word] = lambda round: NO_WORD,
) -> list[RoundRecord]:
    """The rounds as a fresh warden judges them, from recorded signals and by the function of the live guard.

    The same configuration gives the same decisions. Which clients sent the same is known where the recorded guard
    let copies share a vote. ``sources`` names the recorded watch that each watch reads, its own name by default. A
    client rejected in a round has no signal and stays out of that round. ``word_in`` gives the operator's word in each
    round. Weights are the policy's, in [0, 1]; there are no metrics, because nothing is trained.
    """
    if any(STALENESS in record.reported for record in records):
        raise ConfigError(
            "an asynchronous run cannot be judged again: its replies were compared with a window of earlier updates, "
            "which is not recorded; run the scenario again with the other guard"
        )
    names = [w.name for w in warden.watches] if sources is None else list(sources)
    memory, out = warden.memory, []
    for record in records:
        word = heard(word_in(record.round), warden.guard)
        memory = obey(word, memory)
        keep = np.flatnonzero(_measured(record))
        if not len(keep):
            out.append(replace(record, excluded=tuple(memory.excluded), suspended=memory.suspended, metrics={}))
            continue
        clients = tuple(record.client_ids[i] for i in keep.tolist())
        leaders = told_leaders(record.notes if warden.guard.share_copies else (), clients, memory.excluded)
        facts = {name: record.metrics[name] for name in FACTS if name in record.metrics}
        told = {w.name: w.warning for w in record.watches if w.warning and w.warning.kind in OF_SIGNALS}
        readings = [
            Reading(watch.signal[keep], {k: v[keep] for k, v in watch.parts.items()}, facts, told.get(watch.name))
            for watch in (_watched(record, name) for name in names)
        ]
        before, trusted = memory, usual(memory, clients, leaders)
        memory, judgement = judge(warden.guard, memory, record.round, clients, leaders, trusted, readings)
        memory, judgement = overrule(word, memory, judgement, clients)
        n = len(record.client_ids)
        out.append(
            replace(
                record,
                weights=scatter(judgement.weights, keep, n, 0.0),
                watches=judgement.wide(keep, n),
                flagged=scatter(judgement.suspects, keep, n, False),
                excluded=tuple(memory.excluded),
                suspended=memory.suspended,
                notes=tuple(judgement_notes(warden.guard, before, memory, judgement, clients, leaders)),
                metrics={},
            )
        )
    return out


def find_sources(recorded: Sequence[Watch], wanted: Sequence[Watch]) -> tuple[str, ...]:
    """For each wanted watch the recorded one that measured the same signal, of the same name where there are more."""
    found = []
    for watch in wanted:
        same = [r.name for r in recorded if r.signal == watch.signal]
        if not same:
            known = ", ".join(dict.fromkeys(spell(r.signal) for r in recorded)) or "none"
            raise ConfigError(
                f"watch {watch.name!r} needs the signal {spell(watch.signal)}, which the run did not record; "
                f"recorded: {known}"
            )
        found.append(watch.name if watch.name in same else same[0])
    return tuple(found)


def _measured(record: RoundRecord) -> Mask:
    """The clients that have signals; where nothing was watched, those that were not rejected."""
    if record.watches:
        return np.asarray(~np.isnan([w.signal for w in record.watches]).any(axis=0))
    rejected = {r.client_id for r in record.rejected}
    return np.array([c not in rejected for c in record.client_ids], dtype=bool)


def _watched(record: RoundRecord, name: str) -> WatchRecord:
    for watch in record.watches:
        if watch.name == name:
            return watch
    known = ", ".join(w.name for w in record.watches) or "none"
    raise ConfigError(f"round {record.round} has no recorded signal of a watch {name!r}; recorded: {known}")
