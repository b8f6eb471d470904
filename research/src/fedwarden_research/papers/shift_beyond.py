"""What the paper on shifts leaves open: a larger architecture, and an attacker that manipulates the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from torch import Tensor

from fedwarden.sim.branches import Measures
from fedwarden.studies.runner import Cell, Table

from ..studies.tables import Result, Results, Sheet, columns
from .item import LEVEL, found_from, number, summary, too_few
from .shift_figures import PAPERS, departures, tells
from .shift_pictures import INTERNAL
from .shift_tables import scores, sources, verdicts
from .shifts import FRESH, STILL, Change, Setting, federated, run

EVEN = 0.6
STRATEGIES: Mapping[str, float] = {"passive": 1.0, "silent": 0.0, "half reversed": -0.5, "reversed": -1.0}
SHIFT = Change("fresh", EVEN)


@dataclass(frozen=True)
class Scaled:
    """Sends its update times a factor: 0 sends the global model back, -1 undoes what a like client learns."""

    factor: float

    def __call__(self, t: int, update: Tensor) -> Tensor:
        return self.factor * update


def larger(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """Two clients and every ratio of the setting, without partial exchanges."""
    return federated(seeds, device, setting, partial=False)


def larger_sheets(results: Results) -> list[Sheet]:
    return [Sheet("departures", "Departure from the trend in the round of the change", departures(results))]


def larger_holds(sheets: Mapping[str, Sheet]) -> str:
    rows = sheets["departures"].records()
    if unsure := too_few(rows):
        return unsure
    nine = [row for row in rows if row["source"] in INTERNAL and row["metric"] in PAPERS]
    told = {null: sum(tells(row, null) for row in nine) for null in (STILL, FRESH)}
    return (
        f"At {nine[0]['ratio']} {told[STILL]} of {len(nine)} sources tell the shift from no change, and {told[FRESH]} "
        f"from an unshifted swap. {found_from(rows)}"
    )


def active(seeds: Sequence[int], device: str, setting: Setting) -> list[tuple[Cell, Table]]:
    """The observer sends its update times a factor in every round; the other client goes to 60-40."""
    found: list[tuple[Cell, Table]] = []
    for strategy, seed in product(STRATEGIES, seeds):
        ((cell, job),) = federated([seed], device, setting, severities=(EVEN,), partial=False)
        found.append(({"strategy": strategy, **cell}, {**job, "factor": STRATEGIES[strategy]}))
    return found


def run_active(job: Table) -> Result:
    return run(job, Measures({"0": Scaled(job["factor"])}))


def active_sheets(results: Results) -> list[Sheet]:
    """How well each source tells the shift from either null, for every strategy; and the accuracy it leaves."""
    rows = []
    for strategy in dict.fromkeys(r["cell"]["strategy"] for r in results):
        mine = [r for r in results if r["cell"]["strategy"] == strategy]
        accuracy = [list(r["result"]["branches"][STILL]["accuracy"].values())[-1] for r in mine]
        for key in sources(mine):
            found = verdicts(mine, key, SHIFT, [STILL, FRESH])
            told = [x for null in (STILL, FRESH) for x in (number(found[null].auroc), number(found[null].p))]
            departed = [x for b in (FRESH, SHIFT) for x in summary(scores(mine, b, key))]
            rows.append([strategy, *key.split("/")[:2], *departed, *told, *summary(np.array(accuracy)), str(len(mine))])
    head = columns(
        "strategy | source | metric | fresh swap | fresh swap sd | shift | shift sd | AUROC, no change | "
        "p, no change | AUROC, fresh swap | p, fresh swap | accuracy | accuracy sd | seeds"
    )
    brief = []
    for strategy in dict.fromkeys(row[0] for row in rows):
        of_it = [row for row in rows if row[0] == strategy]
        sure = sum(float(row[10]) <= LEVEL for row in of_it)
        best = max(of_it, key=lambda row: float(row[9]))
        brief.append([strategy, f"{sure} of {len(of_it)}", f"{best[1]}, {best[2]}", best[9], *best[11:]])
    brief_head = ["strategy", "sources that tell", "best source", "its AUROC", *head[11:]]
    return [
        Sheet("strategies", "Sources that tell 60-40 from a fresh swap, and the accuracy left", (brief_head, brief)),
        Sheet("sources", "Every source", (head, rows)),
    ]


def active_holds(sheets: Mapping[str, Sheet]) -> str:
    rows = sheets["strategies"].records()
    if unsure := too_few(rows):
        return unsure
    words = [
        f"{r['strategy']} {r['sources that tell']} (accuracy {float(r['accuracy']):.2f})"
        for r in rows
    ]  # fmt: skip
    chance = LEVEL * len({(r["source"], r["metric"]) for r in sheets["sources"].records()})
    return (
        f"Sources that tell the shift from a fresh swap, by what the attacker does: {', '.join(words)}; about "
        f"{chance:.0f} would by chance. {found_from(rows)}"
    )
