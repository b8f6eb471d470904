"""How often a backdoor works after a run, and what is left of the clean accuracy, with every defence made against it.

Success is the share of test images of other classes that the trigger turns into the target class, after the last round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from fedwarden.core.seeds import numpy_rng
from fedwarden.core.words import count
from fedwarden.studies.runner import LATE, Cell, Table

from .defences import POINT, PROBED, RESERVE, SETTINGS
from .plan import Asked, Plan, check, scenario
from .tables import Results, confidence, markdown, select

ROUNDS, SEEDS = 30, 5
SHARES = (0.1, 0.25, 0.4)  # of attackers
BAR = 0.2  # a backdoor that works more often got through
NONE, PLAIN, GUARD = "none", "FedAvg", "auto"
CENTRE = "in the centre"

NOISE, UNLABELLED = "auto with noise", "auto with 200 unlabelled"
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"preset": "none"},
    **{key: {"preset": "auto"} for key in (GUARD, NOISE, UNLABELLED, PROBED)},
}
HELD: Mapping[str, Mapping[str, Any]] = {  # by the server
    NOISE: {"probe": 200, "probe_from": "noise"},
    UNLABELLED: {"reserve": 200, "probe": 200, "reserve_labels": False},
    PROBED: {"reserve": RESERVE, "probe": RESERVE},
}
ATTACKS: Mapping[str, tuple[Mapping[str, Any], ...]] = {
    NONE: (),
    "backdoor": ({"name": "backdoor"},),
    "DBA": ({"name": "dba"},),
    "Neurotoxin": ({"name": "backdoor"}, {"name": "neurotoxin"}),
    CENTRE: ({"name": "backdoor", "corner": "centre"},),
}
WRITERS = {"dataset": "femnist_writers"}
SMALL = {"lr": 0.05, "momentum": 0.9, "epochs": 2, "batch_size": 16}
SOURCES: Mapping[str, Mapping[str, Any]] = {
    "mnist": SETTINGS["mnist"],
    "mnist-cnn": {**SETTINGS["mnist"], "model": {"name": "audit_cnn"}},
    "writers": {"data": WRITERS, "model": {"name": "mlp", "hidden": [128]}, "train": SMALL},
    "writers-cnn": {"data": WRITERS, "model": {"name": "audit_cnn"}, "train": SMALL},
}


@dataclass(frozen=True)
class Split:
    """How many clients there are, and how the data are divided among them."""

    name: str
    clients: int
    partition: Any


MNIST = (Split("IID", 20, "iid"), Split("Dirichlet 0.5", 20, {"name": "dirichlet", "alpha": 0.5}))
REAL = (Split("real writers", 12, "given"),)


def splits(data: str) -> tuple[Split, ...]:
    """The divisions of a data set."""
    return REAL if data.startswith("writers") else MNIST


def plan(asked: Asked) -> Plan:
    """Every attack, share and defence on one data set."""
    data, seeds, rounds = asked.data or "mnist", asked.seeds or SEEDS, asked.rounds or ROUNDS
    wanted = cells(range(seeds), data, rounds, asked.defence, asked.attack)
    command = asked.command("backdoors", data=data, seeds=seeds, rounds=rounds)
    return Plan(
        f"backdoors-{data}-{rounds}",
        wanted,
        f"backdoors-{data}.md",
        lambda found: headline(found, data),
        lambda found: page(found, data, rounds, command),
        tried=[table for _, table in wanted[:1]],
    )


def cells(
    seeds: Sequence[int], data: str, rounds: int, defences: Sequence[str] = (), attacks: Sequence[str] = ()
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed; without attackers there is one per defence and division."""
    check("data set", [data], list(SOURCES))
    check("defence", defences, list(DEFENCES))
    check("attack", attacks, list(ATTACKS))
    found: list[tuple[Cell, Table]] = []
    cases = [(a, s) for a in ATTACKS if a != NONE and (not attacks or a in attacks) for s in SHARES]
    for seed, split, (attack, share), defence in product(
        seeds, splits(data), [(NONE, 0.0), *cases], [d for d in DEFENCES if not defences or d in defences]
    ):
        who = attackers(seed, split.clients, share)
        cell = {"split": split.name, "attack": attack, "share": share, "defence": defence, "seed": seed}
        own = {"clients": split.clients, "partition": split.partition, **HELD.get(defence, {})}
        forged = [{**part, "clients": who} for part in ATTACKS[attack]]
        table = scenario(SOURCES[data], seed, rounds, DEFENCES[defence], own, forged)
        found.append((cell, table))
    return found


def attackers(seed: int, n: int, share: float) -> list[int]:
    """The attackers: at random, and of a seed the same clients in every attack; at least one where the share is not 0.

    >>> [len(attackers(0, n, share)) for n, share in ((20, 0.0), (20, 0.25), (12, 0.1), (12, 0.25))]
    [0, 5, 1, 3]
    """
    many = max(round(share * n), 1) if share else 0
    return sorted(numpy_rng(seed, "backdoors").permutation(n)[:many].tolist())


def places(results: Results, data: str) -> list[tuple[str, str, float]]:
    """The divisions, attacks and shares that have been run, in order."""
    present = {(r["cell"]["split"], r["cell"]["attack"], r["cell"]["share"]) for r in results}
    every = product((s.name for s in splits(data)), ATTACKS, (0.0, *SHARES))
    return [place for place in every if place in present]


def headline(results: Results, data: str) -> str:
    """In how many cases each guard holds, and where it does not: success at most .2, accuracy within a point."""
    found = [line for defence in list(DEFENCES)[1:] for line in held(results, data, defence)]
    return "\n".join(found) or f"`{GUARD}` was not run."


def held(results: Results, data: str, defence: str) -> list[str]:
    """For one guard: a line on the number of cases in which it holds, and one for each in which it does not."""
    lines, good, cases = [], 0, 0
    for split, attack, share in places(results, data):
        found = _of(results, split, attack, share, defence)
        clean = [r["late_accuracy"] for r in _of(results, split, NONE, 0.0, PLAIN)]
        if attack == NONE or not found or not clean:
            continue
        cases += 1
        success = float(np.mean([r["attack_success"] for r in found]))
        cost = float(np.mean(clean) - np.mean([r["late_accuracy"] for r in found]))
        if success <= BAR and cost <= POINT:
            good += 1
        else:
            lines.append(
                f"  - {split}, {_case(attack, share)}: success {success:.2f}, accuracy {100 * cost:.1f} points below "
                "that of FedAvg without attack"
            )
    if not cases:
        return []
    head = (
        f"- With `{defence}` the success is at most {BAR:g}, and the clean accuracy within a point of FedAvg's "
        f"without attack, in {good} of {count(cases, 'case')}."
    )
    return [head, *lines]


def success_table(results: Results, data: str, split: str) -> str:
    """Per defence and attack: how often the trigger works, in percent, with 95 % intervals over seeds."""
    return _table(results, data, split, "attack_success", attacked=True)


def accuracy_table(results: Results, data: str, split: str) -> str:
    """Per defence and attack: the clean accuracy of the last rounds, in percent, with 95 % intervals over seeds."""
    return _table(results, data, split, "late_accuracy", attacked=False)


def excluded_table(results: Results, data: str) -> str:
    """Per case: the attackers that the guard excluded, and the runs in which it excluded somebody else."""
    rows = []
    for (split, attack, share), defence in product(places(results, data), list(DEFENCES)[1:]):
        if found := _of(results, split, attack, share, defence):
            all_of = sum(r["attackers"] for r in found)
            wronged = sum(r["wronged"] > 0 for r in found)
            caught = f"{sum(r['caught'] for r in found)} of {all_of}" if all_of else "-"
            rows.append([split, _case(attack, share), defence, caught, f"{wronged} of {len(found)}"])
    header = ("clients", "attack", "guard", "attackers excluded", "runs with an honest client excluded")
    return markdown(header, rows)


def page(results: Results, data: str, rounds: int, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    parts = []
    for split in splits(data):
        if any(r["cell"]["split"] == split.name for r in results):
            parts += [
                f"## {split.name}, {split.clients} clients: success of the backdoor",
                success_table(results, data, split.name),
                f"## {split.name}, {split.clients} clients: clean accuracy",
                accuracy_table(results, data, split.name),
            ]
    tables = "\n\n".join([*parts, "## Who was excluded", excluded_table(results, data)])
    model = SOURCES[data]["model"]["name"]
    return f"""# Backdoors: {data}

{headline(results, data)}

<!-- not run: hours -->
```bash
{command}
```

- {count(rounds, "round")}; model `{model}`. With `{GUARD}` the server has nothing, with `{NOISE}` noise of the images'
  mean and deviation, with `{UNLABELLED}` 200 images without labels, and with `{PROBED}` {RESERVE} with labels. No
  defence knows how many attack.
- *backdoor*: a bright patch of 3 x 3 pixels in a corner of half of an attacker's images, which get the label of the
  target class. *DBA*: a trigger of four bars that the attackers share out. *Neurotoxin*: the backdoor, without the
  weights that the model moved most. *In the centre*: the patch lies where other clients have ink.
- *Success* is the share of test images of other classes that the trigger turns into the target class after the last
  round; *accuracy* is on clean test images, over the last {LATE} rounds. Both are in percent, with 95 % intervals over
  seeds.

{tables}"""


def _table(results: Results, data: str, split: str, key: str, attacked: bool) -> str:
    columns = [p for p in places(results, data) if p[0] == split and not (attacked and p[1] == NONE)]
    rows = []
    for defence in DEFENCES:
        found = [_of(results, *place, defence) for place in columns]
        if any(found):
            rows.append([defence, *(confidence([r[key] for r in runs]) for runs in found)])
    return markdown(["defence", *(_case(attack, share) for _, attack, share in columns)], rows)


def _case(attack: str, share: float) -> str:
    return "no attack" if attack == NONE else f"{attack}, {100 * share:.0f} %"


def _of(results: Results, split: str, attack: str, share: float, defence: str) -> list[Any]:
    return select(results, {"split": split, "attack": attack, "share": share, "defence": defence})
