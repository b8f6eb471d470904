"""A planned change of one participant's data, before it happens: what would show of it, to whom and from when on.

The federation is played over several seeds, each time with the change, without it, and with as many fresh samples of
the same distribution in its place; every other client looks on. What tells the change from nothing shows that something
is new; what tells it from fresh samples as well shows the change itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from ..attacks import DataAttack
from ..audit.answer import CHANGE, FRESH, STILL, Answer, Measure, Source, in_short
from ..audit.mitigations import smooth
from ..audit.verdict import BY_CLASS, Leakage, Sight, leakage, magnitude, sees
from ..core.config import Component, Part, Strict, override, parse, read_toml
from ..core.errors import ConfigError
from ..core.stats import Scores
from ..core.types import Observation
from ..store.recorder import Recorder
from .branches import Branch, Measures, ObserverSettings, rehearse
from .changes import Change
from .data.sources import Dataset
from .data.world import build_world, load_data, settle
from .recorded import AUDIT
from .scenario import ChangeConfig, Scenario, load_scenario, position

MOVED = 2.0  # deviations from which on a class is named
RESERVE = 1 / 3  # of the samples, by default: of four clients one may then have twice as much of every class
RAMP, KEPT = 9, 0.9  # the measures that hid most in docs/results/audit.md without a loss, and at a loss of a point

OnRound = Callable[[int, str, int], None]


class AuditConfig(Strict):
    """The client whose data change, how and when, and how closely the others look."""

    client: int | str = 0
    change: Part
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
    data: Dataset = field(repr=False)

    @property
    def observers(self) -> tuple[str, ...]:
        return tuple(client for client in self.scenario.client_ids if client != self.client)

    @property
    def client(self) -> str:
        """The name of the client whose data changes."""
        return self.scenario.client_named(self.audit.client, "audit.client")

    @property
    def config(self) -> dict[str, Any]:
        """The file that describes it."""
        return {**self.scenario.model_dump(mode="json"), "audit": self.audit.model_dump(mode="json")}

    def change(self, component: Component) -> ChangeConfig:
        """A change of the planned client's data that comes in as planned."""
        when = {"clients": [self.client], "start": self.audit.start, "ramp": self.audit.ramp}
        return parse(ChangeConfig, {"name": component.name, **component.options, **when})


@dataclass(frozen=True)
class Trace:
    """What one source showed to one observer: how far it departed by round, and each class in the first round."""

    sizes: tuple[float | None, ...]
    parts: dict[str, float]


@dataclass(frozen=True)
class Played:
    """What is kept of a branch: its accuracy in the last round, and its traces by observer and by source."""

    accuracy: float
    seen: dict[str, dict[str, Trace]]


Seeds = list[dict[str, Played]]
"""The branches of each seed."""
SEEDS = TypeAdapter(Seeds)


def load_plan(file: Path, settings: Sequence[str] = ()) -> AuditPlan:
    """A scenario with a table ``audit`` from a TOML file, with overrides applied."""
    table = override(read_toml(file), settings)
    if "audit" not in table:
        raise ConfigError(
            f"{file} has no table [audit], which says whose data change and when; see examples/audit.toml"
        )
    rest = {key: value for key, value in table.items() if key != "audit"}
    audit, scenario = parse(AuditConfig, table["audit"], ("audit",)), load_scenario(rest, folder=file.parent)
    data = load_data(scenario)
    scenario = settle(scenario, data)
    ids = scenario.client_ids
    position(audit.client, ids, "audit.client")
    if len(ids) < 2:
        raise ConfigError("an audit needs others to look on; there is 1 client")
    if audit.start > scenario.rounds:
        raise ConfigError(f"audit.start = {audit.start} lies after the last round; rounds = {scenario.rounds}")
    update = dict[str, Any]()
    if "reserve" not in scenario.data.model_fields_set:
        update["data"] = scenario.data.model_copy(update={"reserve": round(RESERVE * len(data.y_train))})
    if scenario.train.workers is None:  # many short runs: starting workers would cost more than it saves
        update["train"] = scenario.train.model_copy(update={"workers": 1})
    plan = AuditPlan(scenario.model_copy(update=update), audit, data)
    if not isinstance(plan.change(audit.change).make_part(), DataAttack | Change):
        raise ConfigError(f"audit.change {audit.change.name!r} does not change data; see fedwarden list change")
    return plan


def exchanged(plan: AuditPlan) -> float:
    """The share of its samples that the change replaces or alters, once it is all there."""
    scenario, client = plan.scenario, plan.client
    last = plan.audit.start + plan.audit.ramp
    changed = scenario.model_copy(
        update={"attacks": (*scenario.attacks, plan.change(plan.audit.change)), "rounds": max(last, scenario.rounds)}
    )
    world = build_world(changed, plan.data)
    before, after = world.rows[client], world.changed(last).get(client, world.rows[client])
    other = (world.x[before] != world.x[after]).flatten(1).any(dim=1) | (world.y[before] != world.y[after])
    return float(other.double().mean())


def answer(
    plan: AuditPlan,
    on_round: OnRound | None = None,
    begin: Callable[[], Seeds] = list,
    on_seed: Callable[[Seeds, Mapping[str, Sequence[Observation]]], object] | None = None,
    measure: Measures | None = None,
) -> Answer:
    """Rehearse the change over the seeds and judge what each observer could tell.

    ``begin`` is called once it is known that all can be played, and returns the seeds that were played before. After
    each seed ``on_seed`` gets all of them, and what the observers saw of the change in the last one. ``measure`` is
    what the parties do against being read.
    """
    share = exchanged(plan)
    if not share:
        raise ConfigError(f"the change {plan.audit.change.name!r} changes nothing of client {plan.client}'s data")
    fresh = Component(name="fresh_samples", exchange=share)
    branches = {STILL: [], CHANGE: [plan.change(plan.audit.change)], FRESH: [plan.change(fresh)]}
    scenarios = [plan.scenario.model_copy(update={"seed": plan.scenario.seed + i}) for i in range(plan.audit.seeds)]
    for scenario in scenarios:  # what the reserve cannot give is said now, not after minutes
        for changes in branches.values():
            build_world(scenario.model_copy(update={"attacks": (*scenario.attacks, *changes)}), plan.data)
    observing = ObserverSettings(plan.observers, plan.audit.probe, window=plan.audit.window, alpha=plan.audit.alpha)
    seeds = begin()
    for number in range(len(seeds), len(scenarios)):
        tell = partial(on_round, number) if on_round else None
        before, after = rehearse(
            scenarios[number], plan.audit.start, branches, observing, deepcopy(measure), on_round=tell, data=plan.data
        )
        seeds.append({name: kept(branch, plan.scenario.rounds) for name, branch in after.items()})
        if on_seed:
            on_seed(seeds, {c: [*before.seen[c], *seen] for c, seen in after[CHANGE].seen.items()})
    accuracy = {name: float(np.mean([seed[name].accuracy for seed in seeds])) for name in (STILL, CHANGE)}
    audit = plan.audit
    return Answer(
        plan.client, audit.change.model_dump(), audit.start, plan.scenario.rounds, audit.ramp, audit.seeds, audit.alpha,
        plan.observers, share, tuple(sources_of(seeds, plan)), accuracy,
    )  # fmt: skip


def record(
    plan: AuditPlan,
    folder: Path | None = None,
    resume: str | None = None,
    on_round: OnRound | None = None,
    on_start: Callable[[int, int], object] | None = None,
    measured: bool = False,
) -> Answer:
    """The answer, recorded as a run with what the observers saw of the change in the first seed.

    An audit that was interrupted is continued by ``resume``; ``on_start`` gets its number and its finished seeds.
    Where the change shows, and it is to be ``measured``, the answer has what helps against that.
    """
    with Recorder(folder) as recorder:

        def begin() -> Seeds:
            done: Seeds = []
            if resume is None:
                recorder.start(plan.scenario.name, AUDIT, plan.config)
            else:
                run = recorder.ledger.run(resume)
                if run.engine != AUDIT or run.state == "done" or run.config != plan.config:
                    raise ConfigError(f"run {run.id} is no unfinished audit of this file with these settings")
                with suppress(ValidationError):  # what cannot be read is played again
                    done = SEEDS.validate_python(run.summary.get("seeds", []))
                recorder.resume(run, plan.config, lambda *_: None)
            if on_start:
                on_start(recorder.run, len(done))
            return done

        def keep(seeds: Seeds, seen: Mapping[str, Sequence[Observation]]) -> None:
            if len(seeds) == 1:
                for client, observations in seen.items():
                    recorder.ledger.observe(recorder.run, observations, client)
            recorder.ledger.finish(
                recorder.run,
                "running",
                {
                    "verdict": f"{len(seeds)} of {plan.audit.seeds} seeds played",
                    "seeds": SEEDS.dump_python(seeds, mode="json"),
                },
            )

        found = answer(plan, on_round, begin, keep)
        if measured and "shows" in found.itself().values():
            found = replace(found, measures=tuple(helps(plan, on_round)))
        recorder.finish({"answer": found.table(), "verdict": in_short(found)})
        return found


def helps(plan: AuditPlan, on_round: OnRound | None = None) -> Iterator[Measure]:
    """What is left of the change where it comes in gradually, and where the client smooths its updates."""
    ramp = plan.audit.ramp + RAMP
    gradual = replace(
        plan,
        audit=plan.audit.model_copy(update={"ramp": ramp}),
        scenario=plan.scenario.model_copy(update={"rounds": plan.scenario.rounds + RAMP}),
    )
    smoothing = Measures({plan.client: Smoothing(KEPT)})
    tries = ("gradual", ramp, gradual, None), ("smoothing", KEPT, plan, smoothing)
    for past, (kind, value, other, measure) in enumerate(tries, 1):
        played = past * plan.audit.seeds

        def on_later(number: int, branch: str, t: int, played: int = played) -> None:
            if on_round:
                on_round(played + number, branch, t)

        found = answer(other, on_later, measure=measure)
        best = found.surest(FRESH).median(FRESH)
        yield Measure(kind, value, found.itself(), best, found.accuracy[CHANGE])


@dataclass
class Smoothing:
    """A client that sends a moving average of its updates."""

    keep: float
    memory: Tensor | None = None

    def __call__(self, round: int, update: Tensor) -> Tensor:
        self.memory, sent = smooth(self.memory, update, self.keep)
        return sent


def kept(branch: Branch, last: int) -> Played:
    """What is kept of a branch that ends in round ``last``; numbers that are none are None, as in JSON."""
    seen: dict[str, dict[str, Trace]] = {client: {} for client in branch.seen}
    for client, observations in branch.seen.items():
        by_source: dict[str, list[Observation]] = {}
        for o in observations:
            by_source.setdefault(f"{o.source}/{o.metric}", []).append(o)
        for key, found in by_source.items():
            sizes = [size if np.isfinite(size := magnitude(o)) else None for o in found]
            seen[client][key] = Trace(tuple(sizes), dict(found[0].parts))
    return Played(branch.accuracy[last], seen)


def sources_of(seeds: Seeds, plan: AuditPlan) -> list[Source]:
    """The verdict on every source for every observer.

    What counts is the farthest departure up to a round. The level is divided by the number of sources, since the best
    of many is looked for. Holm's correction would be no different here: whether anything shows depends on the smallest
    p-value alone.
    """
    rounds = range(plan.audit.start, plan.scenario.rounds + 1)
    keys = list(seeds[0][STILL].seen[plan.observers[0]])
    far = {
        (branch, client, key): farthest([seed[branch].seen[client][key] for seed in seeds])
        for branch in seeds[0] for client in plan.observers for key in keys
    }  # fmt: skip
    finite = [k for k in keys if all(np.isfinite(found).all() for (_, _, key), found in far.items() if key == k)]
    level = plan.audit.alpha / max(len(finite), 1)
    out = []
    for key in finite:
        verdicts: dict[str, dict[str, Leakage]] = {}
        sight: dict[str, Sight] = {}
        first: dict[str, int | None] = {}
        for client in plan.observers:
            departed = {branch: far[branch, client, key] for branch in seeds[0]}
            at = [_verdict({branch: found[:, t] for branch, found in departed.items()}) for t in range(len(rounds))]
            told = [sees(verdict, STILL, level) for verdict in at]
            verdicts[client], sight[client] = at[-1], told[-1]
            blind = [i for i, found in enumerate(told) if found.shift != "shows"]
            since = blind[-1] + 1 if blind else 0
            first[client] = rounds[since] if since < len(rounds) else None
        source, metric = key.split("/")
        out.append(Source(source, metric, verdicts, sight, first, _moved(seeds, key, plan)))
    return out


def farthest(traces: Sequence[Trace]) -> Scores:
    """The farthest departure of each run up to each round (runs, rounds); NaN before there is any."""
    sizes = np.array([trace.sizes for trace in traces], dtype=np.float64)
    return np.asarray(np.fmax.accumulate(sizes, axis=1))


def _verdict(departed: Mapping[str, Scores]) -> dict[str, Leakage]:
    nulls = {branch: found for branch, found in departed.items() if branch != CHANGE}
    return leakage(departed[CHANGE], nulls, np.random.default_rng(0))


def _moved(seeds: Seeds, key: str, plan: AuditPlan) -> dict[str, float]:
    """The classes that moved when the change came in, beyond what they did without it, the farthest first."""
    if key.split("/")[1] not in BY_CLASS:
        return {}
    change, still = (
        np.mean([list(seed[branch].seen[c][key].parts.values()) for seed in seeds for c in plan.observers], axis=0)
        for branch in (CHANGE, STILL)
    )
    gap = change - still
    return {plan.data.class_names[i]: round(float(gap[i]), 1) for i in np.argsort(-np.abs(gap)) if abs(gap[i]) > MOVED}
