"""Table 3, figures 6 and 7 and the costs of table 1 of PID-MADE: time over clients and parameters.

Times are of this machine and of this package's rules. What can be compared with the paper is how they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch

from fedwarden.aggregators.common import aggregate
from fedwarden.core.types import Cohort
from fedwarden.history.pid import PID
from fedwarden.rules.sigma import judge_sigma
from fedwarden.signals.distance import CentroidDistance
from fedwarden.studies.runner import Cell, Table
from fedwarden.updates.updates import Updates

from ..studies.pictures import curves
from ..studies.tables import Grid, Result, Results, Sheet, interval
from .item import Item, Sheets
from .pid_made import TABLE_3, K

SMALL = 21_430  # parameters of the authors' CNN for 28x28 images of ten classes
MANY, FEW = 200_000, 20  # parameters while clients grow, and clients while parameters grow
CLIENTS, PARAMETERS = (10, 20, 40, 80), (100_000, 200_000, 400_000, 800_000)
REPEATS, LONGEST = 7, 0.5  # calls, and seconds after which no more are made

Rule = tuple[str, Callable[[int], dict[str, Any]], str, str]
"""The name of an aggregator, its options for n clients, and what table 1 says of its cost and the exponent of n."""

RULES: Mapping[str, Rule] = {
    "FedAvg": ("mean", lambda n: {}, "O(nd)", "1"),
    "FedMedian": ("median", lambda n: {}, "O(n log n d)", "1"),
    "trimmed mean": ("trimmed_mean", lambda n: {"b": n // 5}, "O(n log n d)", "1"),
    "RFA": ("geometric_median", lambda n: {}, "O(T nd)", "1"),
    "Krum": ("krum", lambda n: {"f": n // 5}, "O(n^2 d)", "2"),
    "Bulyan": ("bulyan", lambda n: {"f": (n - 3) // 5}, "O(n^2 d)", "2"),
    "FoolsGold": ("foolsgold", lambda n: {}, "O(n^2 d)", "2"),
    "clustered": ("clustered", lambda n: {}, "O(nCd)", "1"),
    "SignFedAvg": ("sign", lambda n: {}, "O(nd)", "1"),
    "norm clipping": ("norm_clipping", lambda n: {}, "O(nd)", "1"),
    "FLANDERS": ("flanders", lambda n: {}, "O(max(d^3, m^3))", "-"),
}


def rows_of(n: int, d: int, seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal((n, d), dtype=np.float32))


def pid_score(rows: torch.Tensor) -> None:
    """What PID-MADE computes in a round: distances to the mean, PID scores, threshold."""
    n = len(rows)
    ids = tuple(map(str, range(n)))
    values = CentroidDistance()(Cohort(2, ids, Updates.of(rows), np.ones(n)))
    history = PID()
    state, _ = history.step({}, ids, values)
    judge_sigma(history.step(state, ids, values)[1], K)


def seconds(call: Callable[[], object]) -> float:
    """The median over a few calls, after one that does not count."""
    call()
    taken: list[float] = []
    while len(taken) < REPEATS and sum(taken) < LONGEST:
        began = perf_counter()
        call()
        taken.append(perf_counter() - began)
    return median(taken)


def time_of(name: str, rows: torch.Tensor) -> float:
    """Seconds of one rule, or of the score of PID-MADE, on rows that it has not seen."""
    if name == "PID-MADE":
        return seconds(lambda: pid_score(rows))
    rule, options, *_ = RULES[name]
    return seconds(lambda: aggregate(rule, rows, **options(len(rows))))


def cells(seeds: Sequence[int], device: str) -> list[tuple[Cell, Table]]:
    return [({"seed": seed}, {"seed": seed}) for seed in seeds]


def run(table: Table) -> Result:
    """Seconds by rule: for 5 to 20 clients of the small CNN, for more clients, and for more parameters."""
    torch.set_num_threads(1)
    seed = int(table["seed"])
    names = ("PID-MADE", *RULES)
    small = {str(n): rows_of(n, SMALL, seed) for n in TABLE_3}
    clients = {str(n): rows_of(n, MANY, seed) for n in CLIENTS}
    parameters = {str(d): rows_of(FEW, d, seed) for d in PARAMETERS}
    return {
        "small": {name: {n: time_of(name, rows) for n, rows in small.items()} for name in ("PID-MADE", "RFA")},
        "clients": {name: {n: time_of(name, rows) for n, rows in clients.items()} for name in names},
        "parameters": {name: {d: time_of(name, rows) for d, rows in parameters.items()} for name in names},
    }


def slope(times: Mapping[str, float]) -> float:
    """The exponent p of t = c x^p by least squares on logarithms.

    >>> round(slope({"10": 3.0, "20": 12.0, "40": 48.0}), 6)
    2.0
    """
    x, y = np.log([float(k) for k in times]), np.log(list(times.values()))
    return float(np.polyfit(x, y, 1)[0])


def table_3(results: Results) -> list[Sheet]:
    rows = []
    for n, paper in TABLE_3.items():
        ours = [interval([1000 * r["result"]["small"][name][str(n)] for r in results]) for name in ("PID-MADE", "RFA")]
        rows.append([str(n), ours[0], f"{paper[0]:g}", ours[1], f"{paper[1]:g}", str(len(results))])
    header = ("clients", "PID, ms", "paper's PID", "RFA, ms", "paper's RFA", "seeds")
    return [Sheet("times", f"Milliseconds on one core, {SMALL:,} parameters", (header, rows))]


def times_hold(sheets: Sheets) -> str:
    """How the time grows from 5 to 20 clients, ours and the paper's, and how RFA compares."""
    first, *_, last = sheets["times"].records()
    columns = ("PID, ms", "paper's PID", "RFA, ms", "paper's RFA")
    start, end = ([number(row[c]) for c in columns] for row in (first, last))
    pid, pid_there, rfa, rfa_there = (e / s for s, e in zip(start, end, strict=True))
    return (
        f"From 5 to 20 clients the time of PID grows {pid:.1f} times (in the paper {pid_there:.1f}) and that of RFA "
        f"{rfa:.1f} times ({rfa_there:.1f}); at 20 clients RFA takes {end[2] / end[0]:.1f} times as long as PID, in "
        f"the paper {end[3] / end[1]:.1f} times."
    )


def number(cell: str) -> float:
    return float(cell.split(" ")[0])


def slopes_table(results: Results) -> Grid:
    rows = []
    for name in ("PID-MADE", *RULES):
        cost, exponent = ("O(nd)", "1") if name == "PID-MADE" else RULES[name][2:]
        n, d = ([slope(r["result"][by][name]) for r in results] for by in ("clients", "parameters"))
        ms = [1000 * r["result"]["clients"][name][str(CLIENTS[-1])] for r in results]
        cells = [interval(x).replace("-0.", "-.") for x in (n, d, ms)]
        rows.append([name, cost, exponent, *cells, str(len(results))])
    most = f"ms at {CLIENTS[-1]} clients"
    return ("rule", "cost in table 1", "exponent of n there", "slope in n", "slope in d", most, "seeds"), rows


def slopes(results: Results) -> list[Sheet]:
    title = f"Measured slopes: {CLIENTS[0]} to {CLIENTS[-1]} clients at {MANY:,} parameters, {PARAMETERS[0]:,} to "
    return [Sheet("slopes", f"{title}{PARAMETERS[-1]:,} parameters at {FEW} clients", slopes_table(results))]


def slopes_hold(sheets: Sheets) -> str:
    rows = {r["rule"]: r for r in sheets["slopes"].records()}
    told = ", ".join(f"{name} {number(rows[name]['slope in n']):.2f}" for name in CLAIMED)
    widest = max(rows, key=lambda name: number(rows[name]["slope in d"]))
    return f"Slopes in n: {told}. The largest slope in d is {number(rows[widest]['slope in d']):.2f} ({widest})."


def draw_times(results: Results, folder: Path, stem: str) -> list[Path]:
    lines = {}
    for i, name in enumerate(("PID-MADE", "RFA")):
        lines[name] = {n: [1000 * r["result"]["small"][name][str(n)] for r in results] for n in TABLE_3}
        lines[f"{name}, the paper"] = {n: [times[i]] for n, times in TABLE_3.items()}
    path = folder / f"{stem}.svg"
    curves(path, {f"{SMALL:,} parameters": lines}, "Time of a score", "clients", "ms", ("PID-MADE",), log=True)
    return [path]


def draw_growth(results: Results, folder: Path, stem: str) -> list[Path]:
    panels = {}
    for by, title in (("clients", f"clients, {MANY:,} parameters"), ("parameters", f"parameters, {FEW} clients")):
        panels[title] = {
            name: {int(x): [1000 * r["result"][by][name][x] for r in results] for x in results[0]["result"][by][name]}
            for name in ("PID-MADE", *RULES)
        }
    path = folder / f"{stem}.svg"
    curves(path, panels, "Time of every rule on one core", "number", "ms", ("PID-MADE",), log=True)
    return [path]


CLAIMED = ("PID-MADE", "Krum", "Bulyan", "FoolsGold")
CHOSEN = ("one core, random updates, the rules of this package", "what counts as the time of a rule")
TABLE = Item(
    "table-3",
    "Time of PID and of RFA for 5 to 20 clients",
    "PID takes a few milliseconds and grows linearly; RFA takes 30 to 40 times as long.",
    cells,
    table_3,
    times_hold,
    "a minute on a quiet machine",
    says={"20 clients, PID, ms": TABLE_3[20][0], "20 clients, RFA, ms": TABLE_3[20][1]},
    chosen=CHOSEN,
    run=run,
    runs="pid-made-times",
)
FIGURE_6 = Item(
    "figure-6",
    "Time by number of clients",
    "the same as table 3, drawn.",
    cells,
    table_3,
    lambda sheets: "As in table 3.",
    "the runs of table 3",
    run=run,
    pictures=draw_times,
    runs="pid-made-times",
)
FIGURE_7 = Item(
    "figure-7",
    "How the time of every rule grows (table 1)",
    "PID-MADE is linear in clients and parameters, Krum, Bulyan and FoolsGold are quadratic in clients.",
    cells,
    slopes,
    slopes_hold,
    "the runs of table 3",
    chosen=("as for table 3", "FLTrust is left out: it needs data of the server's own"),
    run=run,
    pictures=draw_growth,
    runs="pid-made-times",
)
