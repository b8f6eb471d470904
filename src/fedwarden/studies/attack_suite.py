"""The adversary's suite: attacks of every kind and schedule against one configuration, and what got through.

Every case is compared with two runs of the same seed: without attack, and with the honest clients alone, since whoever
is excluded takes its data along.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.metadata import version

import numpy as np

from ..core.errors import ConfigError
from ..core.words import count
from ..sim.federation import Federation
from ..sim.scenario import Scenario
from .attack_cases import NO_ATTACK, Case
from .runner import Cell, Table, one
from .tables import Result, Results, columns, confidence, markdown, mean_interval

TOLERANCE = 2.0  # points of accuracy that an attack may cost
GOAL = 5.0  # points by which a backdoor may work better than it does by chance
FEW = 3  # seeds, below which nothing is said about chance
HEADER = columns(
    "case | accuracy | to no attack | to the honest alone | attackers excluded | honest excluded | verdict"
)
WHERE_ELSE = ("name", "seed", "attacks", "sinks", "target", "target_loss", "checkpoint_every")  # decide no number here


def study_name(scenario: Scenario, what: str = "attacks") -> str:
    """A name that depends on all that decides the numbers but for seed and attack: no other one uses its results."""
    table = scenario.model_dump(exclude=set(WHERE_ELSE))
    table["train"] = {k: v for k, v in table["train"].items() if k not in ("workers", "patience")}
    known = json.dumps([version("fedwarden"), table], sort_keys=True)
    return f"{what}-{sha256(known.encode()).hexdigest()[:8]}"


def cells(cases: Sequence[Case], table: Table, rounds: int, seeds: Sequence[int]) -> list[tuple[Cell, Table]]:
    """All runs: every case that can be run, and once for every group of attackers the honest clients alone."""
    found: dict[str, tuple[Cell, Table]] = {}
    train = {**table.get("train", {}), "workers": 1}
    for case in (c for c in cases if not c.skipped):
        for seed in seeds:
            own = {**table, "seed": seed, "train": train, "checkpoint_every": rounds, "sinks": []}
            attacked: Table = {"scenario": {**own, "attacks": list(case.attacks)}, "without": []}
            runs = [(attack_cell(case, seed), attacked)]
            if case.attacks:
                asleep = [{**a, "start": rounds + 1} for a in case.attacks] if case.aims else []  # tells its success
                alone = {"scenario": {**own, "attacks": asleep}, "without": list(case.attackers)}
                runs.append((alone_cell(case, seed), alone))
            found |= {json.dumps(cell, sort_keys=True): (cell, run) for cell, run in runs}
    return list(found.values())


def attack_cell(case: Case, seed: int) -> Cell:
    return {"attacks": [dict(a) for a in case.attacks], "seed": seed}


def alone_cell(case: Case, seed: int) -> Cell:
    return {"without": list(case.attackers), "goal": case.attacks[0]["name"] if case.aims else "", "seed": seed}


def play(run: Table) -> Result:
    """One run; the replies of the clients in ``without`` are not let in. A run that cannot be is told, not raised."""
    out = frozenset(map(str, run["without"]))

    def leave_out(_: int, federation: Federation) -> None:
        warden = federation.warden
        known = frozenset(federation.clients) - out
        warden.admission = replace(warden.admission, known=known)

    try:
        return one(run["scenario"], leave_out)
    except ConfigError as error:
        return {"refused": str(error)}
    except ValueError as error:
        return {"failed": str(error)}


@dataclass(frozen=True)
class Outcome:
    """What became of a case, by seed; differences are in points of accuracy, below 0 where the attack cost something.

    ``reached`` is the share of the backdoor's aim beyond chance, in points. ``refused`` says why it was not run.
    """

    case: Case
    accuracy: tuple[float, ...] = ()
    to_no_attack: tuple[float, ...] = ()
    to_alone: tuple[float, ...] = ()
    attackers: int = 0
    caught: tuple[int, ...] = ()
    wronged: tuple[int, ...] = ()
    reached: tuple[float, ...] = ()
    refused: str = ""
    failed: str = ""

    @property
    def cost(self) -> float:
        return -float(np.mean(self.to_no_attack)) if self.to_no_attack else 0.0

    @property
    def gain(self) -> float:
        return float(np.mean(self.reached)) if self.reached else 0.0

    @property
    def held(self) -> bool:
        sound = self.cost <= TOLERANCE and self.gain <= GOAL
        return bool(self.accuracy) and sound and not any(self.wronged)

    @property
    def certain(self) -> bool:
        """Whether the whole interval over seeds lies within the tolerance."""
        mean, half = mean_interval(self.to_no_attack)
        return half - mean <= TOLERANCE

    @property
    def damage(self) -> tuple[bool, float, int]:
        """Orders what did not hold, the worst last."""
        return bool(self.failed), max(self.cost, self.gain), sum(self.wronged)


def outcomes(cases: Sequence[Case], found: Results, seeds: Sequence[int]) -> list[Outcome]:
    """Every case with its numbers."""
    known = {json.dumps(r["cell"], sort_keys=True): r["result"] for r in found}

    def of(cell: Cell) -> Result:
        return known[json.dumps(cell, sort_keys=True)]

    clean = [of(attack_cell(Case(NO_ATTACK), seed)) for seed in seeds]
    return [_outcome(case, clean, of, seeds) for case in cases]


def _outcome(case: Case, clean: Sequence[Result], of: Callable[[Cell], Result], seeds: Sequence[int]) -> Outcome:
    if case.skipped:
        return Outcome(case, refused=case.skipped)
    runs = [of(attack_cell(case, seed)) for seed in seeds]
    alone = [of(alone_cell(case, seed)) for seed in seeds] if case.attacks else []
    every = [*clean, *runs, *alone]
    if faults := [run for run in every if "failed" in run or "refused" in run]:
        return Outcome(case, failed=faults[0].get("failed", ""), refused=faults[0].get("refused", ""))
    return Outcome(
        case,
        accuracy=tuple(r["late_accuracy"] for r in runs),
        to_no_attack=_points(runs, clean, "late_accuracy"),
        to_alone=_points(runs, alone, "late_accuracy") if alone else (),
        attackers=runs[0]["attackers"],
        caught=tuple(r["caught"] for r in runs),
        wronged=tuple(r["wronged"] for r in runs),
        reached=_points(runs, alone, "attack_success") if case.aims else (),
    )


def _points(runs: Sequence[Result], beside: Sequence[Result], key: str) -> tuple[float, ...]:
    return tuple(100 * (a[key] - b[key]) for a, b in zip(runs, beside, strict=True))


def verdict(found: Outcome) -> str:
    """What is said of a case.

    >>> verdict(Outcome(Case("a"), (0.9,), (-3.0,), wronged=(2,)))
    'cost 3.0 points, wronged 2 honest clients'
    """
    if found.refused:
        return f"not run: {found.refused}"
    if found.failed:
        return f"failed: {found.failed}"
    parts = []
    if found.cost > TOLERANCE:
        parts.append(f"cost {_signed([-d for d in found.to_no_attack], plus=False)} points")
    if found.gain > GOAL:
        parts.append(f"its aim was reached {_signed(found.reached, plus=False)} points beyond chance")
    if wronged := sum(found.wronged):
        over = f" in {len(found.wronged)} runs" if len(found.wronged) > 1 else ""
        parts.append(f"wronged {count(wronged, 'honest client')}{over}")
    return ", ".join(parts) or "held"


def row(found: Outcome) -> list[str]:
    """A case as the cells of a table."""
    if not found.accuracy:
        return [found.case.name, *["-"] * (len(HEADER) - 2), verdict(found)]
    return [
        found.case.name,
        confidence(found.accuracy),
        _signed(found.to_no_attack) if found.case.attacks else "-",
        _signed(found.to_alone) if found.to_alone else "-",
        f"{np.mean(found.caught):.3g} of {found.attackers}" if found.attackers else "-",
        f"{np.mean(found.wronged):.3g}",
        verdict(found),
    ]


def _signed(values: Sequence[float], plus: bool = True) -> str:
    mean, half = mean_interval(values)
    text = f"{mean + 0.0:+.1f}" if plus else f"{mean:.1f}"
    return f"{text} ± {half:.1f}" if len(values) > 1 else text


def ranked(found: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome], list[Outcome]]:
    """Those that did not hold, worst first; those that held; those that were not run."""
    ran = [o for o in found if not o.refused]
    broken = sorted((o for o in ran if not o.held), key=lambda o: o.damage, reverse=True)
    return broken, [o for o in ran if o.held], [o for o in found if o.refused]


def headline(found: Sequence[Outcome], seeds: int) -> str:
    """How many cases held, and what so few seeds cannot say."""
    broken, held, left = ranked(found)
    parts = [f"{len(held)} of {count(len(held) + len(broken), 'case')} held"]
    if left:
        parts[0] += f", {len(left)} not run"
    unsure = sum(not o.certain for o in held)
    if seeds >= FEW and unsure:
        parts.append(f"the interval of {unsure} of those that held reaches beyond {TOLERANCE:g} points")
    if seeds < FEW:
        what = "1 seed says" if seeds == 1 else f"{seeds} seeds say"
        parts.append(f"{what} nothing about chance: run {FEW} or more before you rely on it")
    return "; ".join(parts) + "."


def page(found: Sequence[Outcome], scenario: Scenario, seeds: int) -> str:
    """Everything as Markdown."""
    broken, held, left = ranked(found)
    guard = scenario.guard.model_dump(exclude_defaults=True)
    parts = [
        "# What got through",
        headline(found, seeds),
        f"{count(scenario.data.clients, 'client')}, {count(scenario.rounds, 'round')}, {count(seeds, 'seed')}; "
        f"guard: `{json.dumps({'preset': scenario.guard.preset, **guard})}`.",
        "Accuracy is the mean of the last five rounds; differences are in points, with 95 % intervals over seeds. "
        f"A case held if accuracy was at most {TOLERANCE:g} points below the run without attack, no honest client was "
        f"excluded, and no backdoor worked more than {GOAL:g} points better than on a model that never saw it. *The "
        "honest alone* is the same run without the attackers' data from the start.",
    ]
    for title, group in (("Did not hold", broken), ("Held", held), ("Not run", left)):
        if group:
            parts += [f"## {title}", markdown(HEADER, [[cell.replace("|", "\\|") for cell in row(o)] for o in group])]
    if again := [o.case for o in broken if o.case.attacks]:
        lines = [f"- {case.name}: `{setting(case.attacks)}`" for case in again]
        parts += ["## To look at one", "Give `fedwarden run` this with `--set`:", "\n".join(lines)]
    return "\n\n".join(parts)


def setting(attacks: Collection[Table]) -> str:
    """The attacks as an override of a scenario.

    >>> setting([{"name": "copy", "clients": [0]}])
    'attacks=[{"name": "copy", "clients": [0]}]'
    """
    return f"attacks={json.dumps(list(attacks))}"


def as_json(found: Outcome) -> dict[str, object]:
    """A case for a machine."""
    return {
        "case": found.case.name,
        "verdict": verdict(found),
        "held": found.held,
        "attacks": [dict(a) for a in found.case.attacks],
        "accuracy": found.accuracy,
        "points_to_no_attack": found.to_no_attack,
        "points_to_honest_alone": found.to_alone,
        "attackers": found.attackers,
        "attackers_excluded": found.caught,
        "honest_excluded": found.wronged,
    }
