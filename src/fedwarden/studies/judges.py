"""Settings that others have published, with their results beside ours.

Nothing about them was chosen here: data, model, training, attack and share of attackers are those of a paper or of the
code that its authors published. What differs is said in each :class:`Judge`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from ..core.types import RoundRecord
from ..core.words import count
from ..sim.federation import simulate
from ..sim.scenario import load_scenario
from .plan import Asked, Plan, check
from .runner import Cell, Table
from .tables import confidence, markdown, select

LAST = 10  # rounds at the end of a run over which its results are averaged
SEEDS = 3
NO_ATTACK = "none"
CLEAN = ("FedAvg", "auto")  # defences that are run without attack too

Published = tuple[float, float]
"""Accuracy and attack success in percent."""
Results = Sequence[Mapping[str, Any]]


def _rule(name: str, **options: Any) -> Table:
    return {"preset": "none", "aggregator": {"name": name, **options}}


@dataclass(frozen=True)
class Judge:
    """A published setting: the scenario, its attacks and defences, and what was published of each pair.

    ``facts`` say what the setting is, ``differs`` what is not as published.
    """

    name: str
    title: str
    source: str
    facts: tuple[str, ...]
    differs: tuple[str, ...]
    rounds: int
    clients: int
    share: float
    scenario: Table
    attacks: Mapping[str, Table]
    defences: Mapping[str, Table]
    published: Mapping[tuple[str, str], Published] = field(default_factory=dict)

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Every attack with every defence; without attack only plain FedAvg and ``auto``."""
        return [*product([NO_ATTACK], CLEAN), *product(self.attacks, self.defences)]


_EQUAL = {"preset": "none", "options": {"weighted": False}}
_AUTO = {"preset": "auto", "options": {"weighted": False}}

LFIGHTER = Judge(
    name="lfighter",
    title="LFighter, Table 3: MNIST, label flips",
    source=(
        "Jebreel, Domingo-Ferrer, Sánchez and Blanco-Justicia, LFighter: Defending against the label-flipping attack "
        "in federated learning, Neural Networks 170 (2024), Table 3; settings from github.com/najeebjebreel/LFighter, "
        "Experiments_MNIST.ipynb"
    ),
    facts=(
        "MNIST among 100 clients by Dirichlet(1), all asked in every one of 200 rounds; 40 of them label each 7 a 1",
        "a CNN of two 5x5 convolutions (10 and 20 channels) and a hidden layer of 50 with dropout; SGD with learning "
        "rate 0.01, momentum 0.9, weight decay 0.0005, batches of 64, 3 local epochs",
        "updates count equally; attack success is the share of the sevens in the test data that are read as ones",
    ),
    differs=(
        "theirs is one run, and tests the mean of the last 10 models; ours averages the tests of the last 10 rounds",
        "dropout takes single values where theirs takes channels, and the last, smaller batch of an epoch is used",
    ),
    rounds=200,
    clients=100,
    share=0.4,
    scenario={
        "data": {
            "dataset": {"name": "mnist", "standardised": True}, "partition": {"name": "dirichlet", "alpha": 1.0}
        },
        "model": {"name": "lfighter_cnn"},
        "train": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 3, "batch_size": 64},
    },
    attacks={"label flip": {"name": "label_flip", "mode": "targeted", "source": 7, "target": 1}},
    defences={
        "FedAvg": _EQUAL,
        "median": _rule("median"),
        "trimmed mean": _rule("trimmed_mean", b=40),
        "Multi-Krum": _rule("multi_krum", f=40),
        "FoolsGold": _rule("foolsgold"),
        "FLAME": _rule("flame"),
        "LFighter": _rule("lfighter"),
        "auto": _AUTO,
    },
    published={
        ("label flip", "FedAvg"): (95.11, 9.44),
        ("label flip", "FLAME"): (96.36, 1.26),
        ("label flip", "LFighter"): (96.30, 0.68),
    },
)  # fmt: skip

FLPOISON = Judge(
    name="flpoison",
    title="FLPoison: MNIST, LeNet-5, 48 % attackers",
    source=(
        "Zhang et al., SoK: Benchmarking Poisoning Attacks and Defenses in Federated Learning, arXiv 2502.03801; "
        "settings from github.com/vio1etus/FLPoison, configs/FedSGD_MNIST_config.yaml"
    ),
    facts=(
        "MNIST among 50 clients, IID, all asked in every round; 24 of them attack",
        "LeNet-5; SGD with learning rate 0.01, momentum 0.9, weight decay 0.0005, batches of 64",
        "attacks with the options of that file: IPM with 0.5, ALIE, Min-Max, and every 3 labelled a 7",
    ),
    differs=(
        "a client passes over its data once a round, for 30 rounds, and sends the sum; theirs sends one batch a round, "
        "for 300 rounds, so that no published number can be held against ours: the column is empty",
        "momentum starts anew in every round",
        "Multi-Krum and DnC are told 23 attackers, the most that Multi-Krum tolerates",
    ),
    rounds=30,
    clients=50,
    share=0.48,
    scenario={
        "data": {"dataset": {"name": "mnist", "standardised": True}, "partition": "iid"},
        "model": {"name": "lenet5"},
        "train": {"lr": 0.01, "momentum": 0.9, "weight_decay": 5e-4, "epochs": 1, "batch_size": 64},
    },
    attacks={
        "label flip": {"name": "label_flip", "mode": "targeted", "source": 3, "target": 7},
        "ALIE": {"name": "alie"},
        "IPM": {"name": "ipm", "epsilon": 0.5},
        "Min-Max": {"name": "min_max"},
    },
    defences={
        "FedAvg": _EQUAL,
        "median": _rule("median"),
        "Multi-Krum": _rule("multi_krum", f=23),
        "RFA": _rule("geometric_median"),
        "DnC": _rule("dnc", f=23),
        "FLAME": _rule("flame"),
        "auto": _AUTO,
    },
)

JUDGES = (LFIGHTER, FLPOISON)


def plan(asked: Asked) -> Plan:
    """The published settings; another number of rounds is a trial."""
    chosen, seeds, rounds = choose(asked.case), asked.seeds or SEEDS, asked.rounds
    command = asked.command("judges", seeds=seeds, rounds=rounds)
    return Plan(
        study_name(rounds),
        cells(range(seeds), chosen, rounds, asked.device or "cpu"),
        "judges.md",
        lambda found: "\n\n".join(f"{judge.title}\n\n{table(found, judge)}" for judge in chosen),
        lambda found: page(found, chosen, rounds, command),
        run=measure,
    )


def choose(asked: Sequence[str]) -> list[Judge]:
    """The judges of these names; all where none is asked for.

    >>> [judge.name for judge in choose(["lfighter"])]
    ['lfighter']
    """
    check("judge", asked, [judge.name for judge in JUDGES])
    return [judge for judge in JUDGES if judge.name in asked or not asked]


def cells(
    seeds: Sequence[int], judges: Sequence[Judge], rounds: int | None = None, device: str = "cpu"
) -> list[tuple[Cell, Table]]:
    """All runs, seed by seed; ``rounds`` in place of the published number are for a trial."""
    found: list[tuple[Cell, Table]] = []
    for seed, judge in product(seeds, judges):
        many = judge.rounds if rounds is None else rounds
        for attack, defence in judge.pairs:
            table = {
                **judge.scenario,
                "seed": seed,
                "rounds": many,
                "checkpoint_every": many,
                "data": {**judge.scenario["data"], "clients": judge.clients},
                "train": {
                    **judge.scenario["train"], "device": device, "workers": 1,
                    "group": 10 if device == "cpu" else judge.clients,
                },
                "attacks": [] if attack == NO_ATTACK else [{**judge.attacks[attack], "share": judge.share}],
                "guard": judge.defences[defence],
            }  # fmt: skip
            found.append(({"judge": judge.name, "attack": attack, "defence": defence, "seed": seed}, table))
    return found


def study_name(rounds: int | None) -> str:
    """A trial with fewer rounds has results of its own.

    >>> study_name(None), study_name(2)
    ('judges', 'judges-2')
    """
    return "judges" if rounds is None else f"judges-{rounds}"


def measure(table: Table) -> dict[str, Any]:
    """Run one scenario in a workspace of its own and return what is kept of it."""
    torch.set_num_threads(1)
    with TemporaryDirectory(prefix="fedwarden-") as folder:
        result = simulate(load_scenario(table), Path(folder))
    return {**tally(result.records), "caught": result.summary["caught"], "wronged": result.summary["wronged"]}


def tally(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Accuracy and attack success, averaged over the last ten rounds; the latter where the attack has a goal."""
    late = [record.metrics for record in records[-LAST:]]
    reached = [m["attack_success"] for m in late if "attack_success" in m]
    return {
        "accuracy": float(np.mean([m["accuracy"] for m in late])),
        "attack_success": float(np.mean(reached)) if reached else None,
    }


def table(results: Results, judge: Judge) -> str:
    """Their accuracy and attack success beside ours, which are means over seeds with 95 % intervals."""
    header = (
        "attack", "defence", "accuracy, published", "accuracy, ours", "attack success, published",
        "attack success, ours", "attackers excluded", "honest excluded", "seeds",
    )  # fmt: skip
    rows = []
    for attack, defence in judge.pairs:
        found = select(results, {"judge": judge.name, "attack": attack, "defence": defence})
        if not found:
            continue
        reached = [r["attack_success"] for r in found if r["attack_success"] is not None]
        theirs = [f"{value:.2f}" for value in judge.published.get((attack, defence), ())] or ["-", "-"]
        excluded = [f"{np.mean([r[key] for r in found]):.1f}" for key in ("caught", "wronged")]
        ours = [confidence([r["accuracy"] for r in found]), confidence(reached)]
        rows.append([attack, defence, theirs[0], ours[0], theirs[1], ours[1], *excluded, len(found)])
    return markdown(header, rows)


def page(results: Results, judges: Sequence[Judge], rounds: int | None, command: str) -> str:
    """Everything as Markdown; ``command`` is what makes it."""
    trial = "" if rounds is None else f"\n\nA trial: {count(rounds, 'round')} in place of the published number."
    parts = [
        f"""# Settings and results of others

Settings that others have published, their results beside ours.{trial}

<!-- not run: hours without a GPU -->
```bash
{command}
```

Accuracy is on clean test data and in percent, as is attack success: the share of the targeted test samples that are
read as the attackers want. Ours are averaged over the last {LAST} rounds, with 95 % intervals over seeds. *Excluded*
counts the clients that the guard has excluded for good, on average over seeds; `auto` is told nothing."""
    ]
    for judge in judges:
        told = "\n".join(f"- {fact[0].upper()}{fact[1:]}." for fact in judge.facts)
        differs = "; ".join(judge.differs)
        head = f"## {judge.title}\n\nSource: {judge.source}."
        parts.append(f"{head}\n\n{told}\n- What differs: {differs}.\n\n{table(results, judge)}")
    return "\n\n".join(parts)
