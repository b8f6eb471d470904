"""Decide again from recorded signals, without training: a what-if on what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core.config import override, parse
from ..core.errors import ConfigError, nearest
from ..core.registry import describe
from ..core.stats import Mask, Scores
from ..core.types import RoundRecord
from ..warden import Warden, Watch, decide, judgement_notes
from .metrics import detection
from .scenario import GuardConfig

PER_WATCH = ("history", "rule", "start_round")


def replay(records: Sequence[RoundRecord], warden: Warden, sources: Sequence[str] | None = None) -> list[RoundRecord]:
    """The rounds as a fresh warden judges them, from recorded signals and by the function of the live guard.

    The same configuration gives the same decisions; where it remeasures, nearly always, because only the last
    measurement of a round is recorded and it is not measured again. ``sources`` names the recorded watch that each
    watch reads, its own name by default. A client rejected in a round has no signal and stays out of that round.
    Weights are the policy's, in [0, 1]; there are no metrics, because nothing is trained.
    """
    names = [w.name for w in warden.watches] if sources is None else list(sources)
    memory, out = warden.memory, []
    for record in records:
        keep = np.flatnonzero(_measured(record))
        if not len(keep):
            out.append(replace(record, excluded=tuple(memory.excluded), metrics={}))
            continue
        clients = tuple(record.client_ids[i] for i in keep)
        signals = [_signal(record, name)[keep] for name in names]
        leaders = _leaders(signals) if warden.share_copies else np.arange(len(keep))
        verdict = decide(
            warden.guard, memory, record.round, clients, leaders,
            lambda trusted, signals=signals: signals,  # type: ignore[misc]
        )  # fmt: skip
        memory = verdict.memory

        def wide(values: Any, fill: Any, n: int = len(record.client_ids), keep: Any = keep) -> Any:
            row = np.full(n, fill, dtype=values.dtype)
            row[keep] = values
            return row

        watches = tuple(
            replace(w, signal=wide(w.signal, np.nan), scores=wide(w.scores, np.nan), flagged=wide(w.flagged, False))
            for w in verdict.watches
        )
        out.append(
            replace(
                record,
                weights=wide(verdict.weights, 0.0),
                watches=watches,
                flagged=wide(verdict.flagged, False),
                excluded=tuple(memory.excluded),
                notes=tuple(judgement_notes(warden.guard, verdict, clients, leaders)),
                metrics={},
            )
        )
    return out


def _leaders(signals: Sequence[Scores]) -> NDArray[np.int_]:
    """Of whom each client sent a copy: a copy was recorded with all the values of the first."""
    if not signals:
        return np.zeros(0, int)
    _, first, group = np.unique(np.array(signals).T, axis=0, return_index=True, return_inverse=True)
    return np.asarray(first[group.reshape(-1)], dtype=int)


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


def spell(part: Any) -> str:
    """A component in a few words.

    >>> spell(Watch("centroid_distance", rule={"name": "k_sigma", "k": 3.0}).rule)
    'k_sigma(k=3.0)'
    """
    options = ", ".join(f"{k}={v}" for k, v in _table(part).items() if k != "name" and v is not None)
    name = str(_table(part)["name"])
    return f"{name}({options})" if options else name


def spell_guard(warden: Warden) -> str:
    """A guard in a few words.

    >>> spell_guard(Warden([Watch("centroid_distance", rule="k_sigma", name="far")]))
    'far: centroid_distance(centre=mean) > raw > k_sigma(k=2.33); observe'
    """
    watches = [f"{w.name}: {spell(w.signal)} > {spell(w.history)} > {spell(w.rule)}" for w in warden.watches]
    return "; ".join([*watches, spell(warden.policy)])


def guard_table(warden: Warden) -> dict[str, Any]:
    """The ``[guard]`` table that describes a warden in full."""
    limits = warden.admission
    return {
        "policy": _table(warden.policy),
        "aggregator": _table(warden.aggregator),
        "admission": {
            "count_ratio": limits.count_ratio or math.inf,
            "max_share": limits.max_share or 1.0,
            "norm_ratio": limits.norm_ratio or math.inf,
            "buffers": limits.buffers,
            "shares": dict(limits.shares),
        },
        "combine": warden.combine,
        "remeasure": warden.remeasure,
        "share_copies": warden.share_copies,
        "quorum": warden.quorum,
        "majority": warden.majority,
        "shorten": warden.shorten or math.inf,
        "watches": [
            {
                "name": w.name,
                "signal": _table(w.signal),
                "history": _table(w.history),
                "rule": _table(w.rule),
                "start_round": w.start_round,
                "fleeting": w.fleeting,
            }
            for w in warden.watches
        ],
    }


def alter(warden: Warden, settings: Sequence[str]) -> Warden:
    """A fresh warden with other settings ``a.b=c``; those of a history, rule or start_round go to every watch.

    >>> alter(Warden([Watch("centroid_distance")]), ["rule=k_sigma", "rule.k=3.0"]).watches[0].rule
    KSigma(k=3.0)
    """
    spread = []
    for setting in settings:
        head = setting.partition("=")[0].split(".")[0].strip()
        known = {*PER_WATCH, *GuardConfig.model_fields} - {"preset", "options"}  # a warden is past those
        if head not in known:
            raise ConfigError(f"a guard has no setting {head!r}; {nearest(head, known)}")
        each = head in PER_WATCH
        spread += [f"watches.{i}.{setting}" for i in range(len(warden.watches))] if each else [setting]
    return parse(GuardConfig, override(guard_table(warden), spread)).build()


@dataclass(frozen=True)
class Change:
    """When a client was excluded in the recorded run, and when in the replay; None = never."""

    client: str
    recorded: int | None
    replayed: int | None
    unseen_from: int | None
    """The first round of which nothing is known, because the recorded run no longer asked this client."""


def compare(recorded: Sequence[RoundRecord], replayed: Sequence[RoundRecord]) -> list[Change]:
    """Every client of the run, in order of appearance, before and after."""
    before, after = (detection(records, {}).first_excluded for records in (recorded, replayed))
    seen = {c: r.round for r in recorded for c in r.client_ids}
    last = recorded[-1].round if recorded else 0
    return [
        Change(c, before.get(c), after.get(c), t + 1 if c in before and t < last else None) for c, t in seen.items()
    ]


def _measured(record: RoundRecord) -> Mask:
    """The clients that have signals; where nothing was watched, those that were not rejected."""
    if record.watches:
        return np.asarray(~np.isnan([w.signal for w in record.watches]).any(axis=0))
    rejected = {r.client_id for r in record.rejected}
    return np.array([c not in rejected for c in record.client_ids], dtype=bool)


def _signal(record: RoundRecord, name: str) -> Scores:
    for watch in record.watches:
        if watch.name == name:
            return watch.signal
    known = ", ".join(w.name for w in record.watches) or "none"
    raise ConfigError(f"round {record.round} has no recorded signal of a watch {name!r}; recorded: {known}")


def _table(part: Any) -> dict[str, Any]:
    return {key: value for key, value in describe(part).items() if key != "kind"}
