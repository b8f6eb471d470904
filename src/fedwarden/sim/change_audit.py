"""A planned change of one participant's data, before it happens: what would show of it, to whom and from when on.

The federation is played over several seeds, each time with the change, without it, and with fresh samples of the same
distribution in its place; every other client looks on. What tells the change from nothing shows that something is new;
what tells it from fresh samples as well shows the change itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from ..attacks import DataAttack
from ..audit.power import Reach, Says, reach, some
from ..audit.verdict import BY_CLASS, Leakage, Sight, leakage, magnitude, sees
from ..core.config import Component, Part, Strict, override, parse, read_toml
from ..core.errors import ConfigError
from ..core.html import table as html_table
from ..core.stats import Scores
from ..core.types import Observation
from .branches import Branch, ObserverSettings, rehearse
from .data.world import build_world, load_data, settle
from .scenario import AttackConfig, Scenario, load_scenario

STILL, FRESH, PARTIAL, CHANGE = "no change", "fresh swap", "partial swap", "the change"
MOVED = 2.0  # deviations from which on a class is named

Key = tuple[str, str]
Seen = Mapping[tuple[str, str], list[dict[Key, list[Observation]]]]
"""What was observed in each branch by each client, run by run and by source."""
OnRound = Callable[[int, str, int], None]


class AuditConfig(Strict):
    """The client whose data change, how and when, and how closely the others look."""

    client: int = Field(0, ge=0)
    change: Part = Component(name="label_shift", even=0.8)
    start: int = Field(11, ge=6)
    ramp: int = Field(0, ge=0)
    seeds: int = Field(10, ge=4)
    probe: int = Field(128, ge=1)
    window: int = Field(5, ge=3)
    alpha: float = Field(0.05, gt=0, lt=1)


@dataclass(frozen=True)
class AuditPlan:
    """A federation and a change planned in it."""

    scenario: Scenario
    audit: AuditConfig

    @property
    def observers(self) -> tuple[str, ...]:
        return tuple(client for client in self.scenario.client_ids if client != self.client)

    @property
    def client(self) -> str:
        """The name of the client whose data changes."""
        return self.scenario.client_ids[self.audit.client]

    def change(self, component: Component) -> AttackConfig:
        """A change of the planned client's data that comes in as planned."""
        when = {"clients": [self.audit.client], "start": self.audit.start, "ramp": self.audit.ramp}
        return parse(AttackConfig, {"name": component.name, **component.options, **when})


@dataclass(frozen=True)
class Source:
    """What one source shows to each observer: its verdict against each null, what it sees, and from which round on.

    ``first`` is the round from which on the observer tells the change from every null, None if it never does;
    ``moved`` are the classes whose answers moved, by how many past deviations.
    """

    source: str
    metric: str
    verdicts: dict[str, dict[str, Leakage]]
    sees: dict[str, Sight]
    first: dict[str, int | None]
    moved: dict[str, float]

    @property
    def name(self) -> str:
        return f"{self.source}, {self.metric.replace('_', ' ')}"

    def against(self, null: str) -> Leakage:
        """The verdict of the median observer."""
        return sorted((v[null] for v in self.verdicts.values()), key=lambda v: v.auroc)[len(self.verdicts) // 2]


@dataclass(frozen=True)
class Answer:
    """What would show of a planned change; ``exchanged`` is the share of samples that it replaces."""

    plan: AuditPlan
    exchanged: float
    sources: tuple[Source, ...]
    accuracy: dict[str, float]

    @property
    def reach(self) -> Reach:
        """What the tests could find with so many seeds and sources."""
        audit = self.plan.audit
        return reach(audit.seeds, audit.seeds, len(self.sources), audit.alpha)

    def change(self) -> dict[str, Says]:
        """Whether the change itself shows to each observer, in any source."""
        return {c: some(s.sees[c].shift for s in self.sources) for c in self.plan.observers}

    def new(self) -> dict[str, Says]:
        """Whether it shows to each observer, in any source, that the data are new."""
        return {c: some(s.sees[c].new for s in self.sources) for c in self.plan.observers}

    def first(self) -> int | None:
        """The round from which on the change itself shows to somebody."""
        return min((t for s in self.sources for t in s.first.values() if t is not None), default=None)

    def verdicts(self) -> dict[str, dict[str, Leakage]]:
        """Of each source its verdict against each null, as the median observer has it."""
        return {
            s.name: {null: s.against(null) for null in next(iter(s.verdicts.values()))}
            for s in sorted(self.sources, key=lambda s: -s.against(FRESH).auroc)
        }

    def plot(self, dark: bool = False) -> Any:
        """How well each source tells the change from its nulls, as a Plotly figure."""
        return import_module("fedwarden.figures.audit").aurocs(self.verdicts(), dark)

    def _repr_html_(self) -> str:
        found = self.verdicts()
        nulls = list(dict.fromkeys(null for verdict in found.values() for null in verdict))
        rows = [
            [name, *(f"{v[n].auroc:.2f} ({v[n].low:.2f} to {v[n].high:.2f})" for n in nulls)]
            for name, v in found.items()
        ]
        told = list(self.change().values())
        caption = f"The change shows to {told.count('shows')} of {len(told)} clients"
        if unsure := told.count("cannot tell"):
            caption += f"; for {unsure} these seeds cannot tell"
        return html_table(["source", *(f"AUROC against {n}" for n in nulls)], rows, caption)


def load_plan(file: Path, settings: Sequence[str] = ()) -> AuditPlan:
    """A scenario with a table ``audit`` from a TOML file, with overrides applied."""
    table = override(read_toml(file), settings)
    if "audit" not in table:
        raise ConfigError(
            f"{file} has no table [audit], which says whose data change and when; see examples/audit.toml"
        )
    rest = {key: value for key, value in table.items() if key != "audit"}
    audit, scenario = parse(AuditConfig, table["audit"], ("audit",)), load_scenario(rest, folder=file.parent)
    scenario = settle(scenario, load_data(scenario))
    n = scenario.data.clients
    if n < 2 or audit.client >= n:
        raise ConfigError(f"audit.client = {audit.client} needs others to look on; there are {n} clients, from 0 on")
    if audit.start > scenario.rounds:
        raise ConfigError(f"audit.start = {audit.start} lies after the last round; rounds = {scenario.rounds}")
    if not isinstance(audit.change.make("attack"), DataAttack):
        raise ConfigError(f"audit.change {audit.change.name!r} does not change data; see fedwarden list attack")
    if scenario.train.workers is None:  # many short runs: starting workers would cost more than it saves
        train = scenario.train.model_copy(update={"workers": 1})
        scenario = scenario.model_copy(update={"train": train})
    return AuditPlan(scenario, audit)


def exchanged(plan: AuditPlan) -> float:
    """The share of its samples that the change replaces or alters, once it is all there."""
    scenario, client = plan.scenario, plan.client
    last = plan.audit.start + plan.audit.ramp
    changed = scenario.model_copy(
        update={"attacks": (*scenario.attacks, plan.change(plan.audit.change)), "rounds": max(last, scenario.rounds)}
    )
    world = build_world(changed)
    before, after = world.rows[client], world.changed(last).get(client, world.rows[client])
    other = (world.x[before] != world.x[after]).flatten(1).any(dim=1) | (world.y[before] != world.y[after])
    return float(other.double().mean())


def answer(plan: AuditPlan, on_round: OnRound | None = None) -> Answer:
    """Rehearse the change over the seeds and judge what each observer could tell."""
    share = exchanged(plan)
    if not share:
        raise ConfigError(f"the change {plan.audit.change.name!r} changes nothing of client {plan.client}'s data")
    branches = {STILL: [], CHANGE: [plan.change(plan.audit.change)], FRESH: [_fresh(plan, 1.0)]}
    if share < 1:
        branches[PARTIAL] = [_fresh(plan, share)]
    data = load_data(plan.scenario)
    scenarios = [plan.scenario.model_copy(update={"seed": plan.scenario.seed + i}) for i in range(plan.audit.seeds)]
    for scenario in scenarios:  # what the reserve cannot give is said now, not after minutes
        for changes in branches.values():
            build_world(scenario.model_copy(update={"attacks": (*scenario.attacks, *changes)}), data)
    observing = ObserverSettings(plan.observers, plan.audit.probe, window=plan.audit.window, alpha=plan.audit.alpha)
    runs: list[dict[str, Branch]] = []
    for number, scenario in enumerate(scenarios):
        tell = partial(on_round, number) if on_round else None
        runs.append(rehearse(scenario, plan.audit.start, branches, observing, on_round=tell, data=data)[1])
    last = {name: float(np.mean([r[name].accuracy[plan.scenario.rounds] for r in runs])) for name in (STILL, CHANGE)}
    return Answer(plan, share, tuple(sources_of(runs, plan)), last)


def sources_of(runs: Sequence[Mapping[str, Branch]], plan: AuditPlan) -> list[Source]:
    """The verdict on every source for every observer.

    What counts is the farthest departure up to a round. The level is divided by the number of sources, since the best
    of many is looked for. Holm's correction would be no different here: whether anything shows depends on the smallest
    p-value alone.
    """
    rounds = range(plan.audit.start, plan.scenario.rounds + 1)
    seen: Seen = {
        (branch, client): [_by_source(run[branch].seen[client]) for run in runs]
        for branch in runs[0]
        for client in plan.observers
    }
    keys = list(seen[STILL, plan.observers[0]][0])
    finite = [k for k in keys if all(np.isfinite(_farthest(found, k, rounds[0])).all() for found in seen.values())]
    level = plan.audit.alpha / max(len(finite), 1)
    out = []
    for key in finite:
        verdicts: dict[str, dict[str, Leakage]] = {}
        sight: dict[str, Sight] = {}
        first: dict[str, int | None] = {}
        for client in plan.observers:
            at = {t: _verdict(seen, key, client, t) for t in rounds}
            told = {t: sees(at[t], STILL, level) for t in rounds}
            verdicts[client], sight[client] = at[rounds[-1]], told[rounds[-1]]
            first[client] = next((t for t in rounds if all(told[u].shift == "shows" for u in rounds if u >= t)), None)
        out.append(Source(*key, verdicts, sight, first, _moved(seen, key, plan.observers)))
    return out


def _verdict(seen: Seen, key: Key, client: str, t: int) -> dict[str, Leakage]:
    departed = {branch: _farthest(found, key, t) for (branch, who), found in seen.items() if who == client}
    return leakage(departed.pop(CHANGE), departed, np.random.default_rng(0))


def _farthest(found: Sequence[Mapping[Key, list[Observation]]], key: Key, t: int) -> Scores:
    """The farthest departure of each run up to a round."""
    sizes = [[magnitude(o) for o in run[key] if o.round <= t] for run in found]
    return np.array([max((x for x in s if np.isfinite(x)), default=np.nan) for s in sizes], dtype=np.float64)


def _moved(seen: Seen, key: Key, clients: Sequence[str]) -> dict[str, float]:
    """The classes that moved when the change came in, beyond what they did without it."""
    if key[1] not in BY_CLASS:
        return {}
    means = {
        branch: np.mean(
            [list(o.parts.values()) for c in clients for run in seen[branch, c] for o in run[key][:1]], axis=0
        )
        for branch in (CHANGE, STILL)
    }
    gap = means[CHANGE] - means[STILL]
    return {str(i): round(float(gap[i]), 1) for i in np.argsort(-np.abs(gap)) if abs(gap[i]) > MOVED}


def _by_source(seen: Sequence[Observation]) -> dict[Key, list[Observation]]:
    found: dict[Key, list[Observation]] = {}
    for o in seen:
        found.setdefault((o.source, o.metric), []).append(o)
    return found


def _fresh(plan: AuditPlan, share: float) -> AttackConfig:
    return plan.change(Component(name="fresh_samples", exchange=share))


def as_table(found: Answer) -> dict[str, object]:
    """The answer as plain values."""
    plan = found.plan
    return {
        "client": plan.client,
        "change": plan.audit.change.model_dump(),
        "start": plan.audit.start,
        "rounds": plan.scenario.rounds,
        "seeds": plan.audit.seeds,
        "observers": list(plan.observers),
        "exchanged": found.exchanged,
        "verdict": {"change": found.change(), "new": found.new(), "tests": len(found.sources), **vars(found.reach)},
        "from_round": found.first(),
        "accuracy": found.accuracy,
        "sources": [
            {
                "source": s.source,
                "metric": s.metric,
                "sees": {client: vars(sight) for client, sight in s.sees.items()},
                "from_round": s.first,
                "moved": s.moved,
                "against": {
                    client: {null: vars(verdict) for null, verdict in verdicts.items()}
                    for client, verdicts in s.verdicts.items()
                },
            }
            for s in found.sources
        ],
    }
