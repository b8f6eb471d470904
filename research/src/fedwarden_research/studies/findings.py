"""A comparison of defences: what came of its runs, with intervals and paired tests, on the screen and for a paper."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from fedwarden.core.config import to_toml
from fedwarden.core.words import count
from fedwarden.sim.scenario import MANY
from fedwarden.studies.attack_suite import FEW
from fedwarden.studies.runner import LATE, Cell, Table

from .pictures import dots
from .tables import Grid, Result, Results, mean_interval, write_csv

NO_ATTACK, FILE = "no attack", "comparison.toml"
LEVEL, POWER = 0.05, 0.8
MEASURES = {"accuracy": "accuracy (%)", "attack_success": "success (%)", "loss": "loss"}
PACKAGES = ("fedwarden", "fedwarden-research", "torch", "numpy", "scipy")


@dataclass(frozen=True)
class Comparison:
    """Guards and attacks by name, on a scenario that has neither.

    ``stamps`` are short hashes of the modules and files that the tables name: what has changed is run again.
    """

    scenario: Table
    defences: Mapping[str, Table]
    attacks: Mapping[str, Sequence[Table]]
    seeds: Sequence[int]
    command: str
    stamps: Mapping[str, str]

    def cell(self, defence: str, attack: str, seed: int) -> Cell:
        own = {"guard": self.defences[defence], "attacks": list(self.attacks[attack])}
        text = json.dumps([self.scenario, own], default=str)
        return {**own, "seed": seed, "stamps": {name: stamp for name, stamp in self.stamps.items() if name in text}}

    def cells(self) -> list[tuple[Cell, Table]]:
        return [
            (cell, {"where": f"{defence} {_under(attack)}, seed {seed}", "scenario": self._table(cell)})
            for seed in self.seeds for attack in self.attacks for defence in self.defences
            for cell in [self.cell(defence, attack, seed)]
        ]  # fmt: skip

    def _table(self, cell: Cell) -> Table:
        train = {**self.scenario.get("train", {}), "workers": 1}
        own = {key: value for key, value in cell.items() if key != "stamps"}
        return {**self.scenario, **own, "train": train, "sinks": [], "checkpoint_every": MANY}

    def described(self) -> dict[str, Any]:
        """All that decides the numbers, as TOML gives it back."""
        data = {**self.scenario.get("data", {}), "folder": None}
        table = {
            "command": self.command, "seeds": list(self.seeds),
            "versions": {"python": python_version(), **{name: version(name) for name in PACKAGES}},
            "stamps": self.stamps, "scenario": {**self.scenario, "data": data},
            "defences": self.defences, "attacks": self.attacks,
        }  # fmt: skip
        return tomllib.loads(to_toml(table))


@dataclass(frozen=True)
class Column:
    """One measure under one attack, over seeds by defence; accuracies and successes in percent."""

    attack: str
    key: str
    values: Mapping[str, Sequence[float]]

    @property
    def title(self) -> str:
        return f"{self.attack}, success" if self.key == "attack_success" else self.attack

    @property
    def sign(self) -> int:
        """1 where more is better, else -1."""
        return 1 if self.key == "accuracy" else -1

    def best(self, defence: str) -> bool:
        return max(self.values, key=lambda name: self.sign * float(np.mean(self.values[name]))) == defence

    def text(self, defence: str) -> str:
        mean, half = mean_interval(self.values[defence])
        form = ".3g" if self.key == "loss" else ".1f"
        return f"{mean:{form}} ± {half:{form}}" if len(self.values[defence]) > 1 else f"{mean:{form}}"


@dataclass(frozen=True)
class Contrast:
    """The first defence minus another one, over seeds; above 0 where the first one does better.

    ``p`` is None where there are too few seeds. ``detectable`` is the difference that would be found with power .8.
    """

    column: Column
    against: str
    mean: float
    half: float
    p: float | None = None
    detectable: float | None = None

    @property
    def verdict(self) -> str:
        if self.p is None or self.p > LEVEL:
            return "cannot tell"
        return "better" if self.mean > 0 else "worse"


def paired(gaps: NDArray[np.float64]) -> float:
    """The two-sided p-value of Student's t-test that paired differences have mean 0.

    >>> round(paired(np.array([1.0, 2.0, 3.0])), 4), paired(np.zeros(3))
    (0.0742, 1.0)
    """
    error = gaps.std(ddof=1) / np.sqrt(len(gaps))
    return float(2 * stats.t.sf(abs(gaps.mean()) / error, len(gaps) - 1)) if error else float(not gaps.any())


def holm(ps: Sequence[float]) -> list[float]:
    """P-values of m tests, raised so that one at or below the level is a false finding at most that often.

        p'_(i) = max over j <= i of min(1, (m - j + 1) p_(j))

    Holm, Scand. J. Statist. 6 (1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(ps, kind="stable")
    raised = np.empty(len(ps))
    raised[order] = np.maximum.accumulate(np.minimum(1.0, np.asarray(ps)[order] * np.arange(len(ps), 0, -1)))
    return [float(p) for p in raised]


def detectable(n: int, level: float) -> float:
    """The mean difference that n pairs show with power .8 at this level, in deviations of the differences.

    By the noncentral t distribution; 34 pairs for half a deviation, as by G*Power.

    >>> round(detectable(34, 0.05), 2)
    0.5
    """
    edge = float(stats.t.ppf(1 - level / 2, n - 1))
    far = optimize.brentq(lambda shift: stats.nct.sf(edge, n - 1, shift) - POWER, 0.0, 3 * edge + 3)
    return float(far) / float(np.sqrt(n))


@dataclass(frozen=True)
class Findings:
    """What a comparison measured: columns of means, tests, its runs one by one, and the errors of aggregators."""

    made: Comparison
    columns: Sequence[Column]
    tests: Sequence[Contrast]
    runs: Sequence[Mapping[str, object]]
    errors: Sequence[str]

    def means(self) -> Grid:
        rows = [[defence, *(column.text(defence) for column in self.columns)] for defence in self.made.defences]
        return ["defence", *(column.title for column in self.columns)], rows

    def compared(self) -> Grid:
        rows = [
            [t.column.title, t.against, f"{t.mean:+.3g} ± {t.half:.3g}", _short(t.p), t.verdict, _short(t.detectable)]
            for t in self.tests
        ]
        return ["under", "against", "difference", "p", "verdict", "detectable"], rows

    def words(self) -> str:
        """How the numbers were made."""
        n, first = len(self.made.seeds), next(iter(self.made.defences))
        spread = " ± half of the 95 % interval" if n > 1 else ""
        last = min(LATE, self.made.scenario["rounds"])
        head = f"Mean of {count(n, 'seed')}{spread}, each over the last {last} rounds of a run."
        if len(self.made.defences) == 1:
            return head
        head += f" Differences are {first} minus another defence, positive where {first} does better."
        if n < FEW:
            return f"{head} No test: {count(n, 'seed')} cannot tell defences apart; give at least {FEW}."
        return (
            f"{head} Two-sided paired t-tests over seeds; p is corrected by Holm for "
            f"{count(len(self.tests), 'comparison')}. Detectable is the true difference that {count(n, 'seed')} would "
            f"show with a probability of at least {100 * POWER:.0f} %."
        )

    def told(self) -> str:
        """For the terminal."""
        tables = [aligned(grid) for grid in (self.means(), self.compared()) if grid[1]]
        return "\n\n".join([*tables, self.words(), *self.errors])

    def page(self) -> str:
        shown = f"```bash\n{self.made.command}\n```\n\n```text\n{self.told()}\n```"
        return f"# Comparison of defences\n\n{shown}\n\n![Comparison](comparison.svg)"

    def counts(self) -> dict[str, Sequence[Mapping[str, object]]]:
        """Rows of numbers, for other programs."""
        first = next(iter(self.made.defences))
        spreads = [(c, d, *mean_interval(values)) for c in self.columns for d, values in c.values.items()]
        cells = [
            {"attack": c.attack, "measure": c.key, "defence": d, "seeds": len(c.values[d]), "mean": mean,
             "low": mean - half, "high": mean + half}
            for c, d, mean, half in spreads
        ]  # fmt: skip
        tests = [
            {"attack": t.column.attack, "measure": t.column.key, "defence": first, "against": t.against,
             "difference": t.mean, "low": t.mean - t.half, "high": t.mean + t.half, "p": t.p, "verdict": t.verdict,
             "detectable": t.detectable}
            for t in self.tests
        ]  # fmt: skip
        return {"cells": cells, "tests": tests}

    def write(self, folder: Path) -> list[Path]:
        """Everything for a paper, and what is needed to make it again."""
        panels = {c.title: (MEASURES[c.key], c.values) for c in self.columns}
        rows = {"runs": self.runs, **self.counts()}
        texts = {FILE: to_toml(self.made.described()) + "\n", "table.tex": self.latex()}
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        tables = [write_csv(folder / f"{name}.csv", _grid(some)) for name, some in rows.items() if some]
        return [*tables, *dots(folder / "comparison", panels), *(folder / name for name in texts)]

    def latex(self) -> str:
        """The means: the best of each column in bold, a star where a defence differs from the first one."""
        apart = {(t.column.title, t.against) for t in self.tests if t.verdict != "cannot tell"}
        star = "A star: differs from the first row (paired t-test, Holm). " if apart else ""
        header, _ = self.means()
        body = []
        for defence in self.made.defences:
            row = [_tex(defence)]
            for column in self.columns:
                text = column.text(defence).replace("±", r"\pm")
                text = rf"\mathbf{{{text}}}" if column.best(defence) else text
                row.append(f"${text}{'^{*}' if (column.title, defence) in apart else ''}$")
            body.append(" & ".join(row) + r" \\")
        head = [r"\begin{tabular}{l" + "r" * len(self.columns) + "}", r"\toprule"]
        head += [" & ".join(map(_tex, header)) + r" \\", r"\midrule"]
        note = f"% needs booktabs. {star}{self.words()}"
        return "\n".join([note, *head, *body, r"\bottomrule", r"\end{tabular}", ""])


def findings(made: Comparison, found: Results) -> Findings:
    known = {json.dumps(r["cell"], sort_keys=True): r["result"] for r in found}
    cells = {
        (attack, defence): [known[json.dumps(made.cell(defence, attack, seed), sort_keys=True)] for seed in made.seeds]
        for attack in made.attacks for defence in made.defences
    }  # fmt: skip
    columns = [column for attack in made.attacks for column in _columns(attack, made.defences, cells)]
    runs = [
        {"attack": attack, "defence": defence, "seed": seed, **result}
        for (attack, defence), some in cells.items() for seed, result in zip(made.seeds, some, strict=True)
    ]  # fmt: skip
    failed = {(run["defence"], run["error"]): run for run in reversed(runs) if run["error"]}
    errors = [f"{name} failed, first {_under(run['attack'])}: {error}" for (name, error), run in failed.items()]
    return Findings(made, columns, _tests(made, columns), runs, errors)


def _columns(
    attack: str, defences: Mapping[str, Table], cells: Mapping[tuple[str, str], Sequence[Result]]
) -> list[Column]:
    """Accuracy or, where a task has none, loss; and the success of an attack that has an aim."""
    measured = [key for key in MEASURES if key in cells[attack, next(iter(defences))][0]]
    return [
        Column(attack, key, {d: [r[key] * (1 if key == "loss" else 100) for r in cells[attack, d]] for d in defences})
        for key in measured if key != "loss" or "accuracy" not in measured
    ]  # fmt: skip


def _tests(made: Comparison, columns: Sequence[Column]) -> list[Contrast]:
    """The first defence against every other one in each column."""
    first, *others = made.defences
    gaps = [(c, other, c.sign * np.subtract(c.values[first], c.values[other])) for c in columns for other in others]
    plain = [Contrast(column, other, *mean_interval(gap.tolist())) for column, other, gap in gaps]
    n = len(made.seeds)
    if n < FEW or not plain:
        return plain
    ps, far = holm([paired(gap) for *_, gap in gaps]), detectable(n, LEVEL / len(gaps))
    return [
        Contrast(t.column, t.against, t.mean, t.half, p, far * float(gap.std(ddof=1)))
        for t, p, (*_, gap) in zip(plain, ps, gaps, strict=True)
    ]


def _under(attack: str) -> str:
    return "without attack" if attack == NO_ATTACK else f"under {attack}"


def _grid(rows: Sequence[Mapping[str, object]]) -> Grid:
    """Rows for a CSV file.

    >>> _grid([{"p": 0.25, "n": None}])
    (['p', 'n'], [['0.25', '']])
    """
    header = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[row.get(key) for key in header] for row in rows]
    return header, [["" if x is None else f"{x:.6g}" if isinstance(x, float) else str(x) for x in row] for row in cells]


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def _tex(text: str) -> str:
    r"""Text with LaTeX's own characters escaped.

    >>> print(_tex("label_flip, 95 %"))
    label\_flip, 95 \%
    """
    return re.sub(r"([&%$#_{}])", r"\\\1", text)


def aligned(grid: Grid) -> str:
    """A table for the terminal.

    >>> print(aligned((["defence", "none"], [["mean", "96.0"]])))
    defence  none
    mean     96.0
    """
    lines = [grid[0], *grid[1]]
    wide = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(cell.ljust(w) for cell, w in zip(line, wide, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)
