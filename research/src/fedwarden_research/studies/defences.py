"""Every defence against every attack: clean accuracy over share of attackers and heterogeneity.

Rules that ask for a number of attackers are told the true one, or the most they tolerate where that is less; the guards
(``pid_made``, ``auto``) and the other rules are told nothing. Of the server's 100 samples only FLTrust makes use, and
``auto with probe``. The attack ``strongest`` is another one for every defence: it knows the defence and sends what
hurts it most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from fedwarden.core.errors import ConfigError
from fedwarden.studies.runner import Cell, Table

from . import compare
from .pictures import curves
from .plan import Asked, Plan, check, division, only_by, scenario
from .tables import Grid, confidence, markdown, select, write_csv

CLIENTS = 20
SHARES = (0.1, 0.25, 0.4)
ALPHAS = (100.0, 0.5)
POINT = 0.01
NEAR, BOUND = 0.9, 0.1  # the bars: the share of cells in which auto is best, and how much a probe may leave to lose
RESERVE = 100  # samples of the server
PROBED, ALIKE = "auto with probe", "auto, alike"
OWN = ("auto", PROBED, ALIKE)

Guard = Mapping[str, Any]


DEFENCES: Mapping[str, Callable[[int], Guard]] = {
    "FedAvg": lambda f: {"preset": "none"},
    "median": lambda f: only_by("median"),
    "trimmed mean": lambda f: only_by("trimmed_mean", b=f),
    "Krum": lambda f: only_by("krum", f=f),
    "Multi-Krum": lambda f: only_by("multi_krum", f=f),
    "Bulyan": lambda f: only_by("bulyan", f=min(f, (CLIENTS - 3) // 4)),
    "RFA": lambda f: only_by("geometric_median"),
    "FLTrust": lambda f: only_by("fltrust"),
    "FoolsGold": lambda f: only_by("foolsgold"),
    "clustered": lambda f: only_by("clustered"),
    "sign": lambda f: only_by("sign"),
    "norm clipping": lambda f: only_by("norm_clipping"),
    "centred clipping": lambda f: only_by("centered_clipping"),
    "FLANDERS": lambda f: only_by("flanders"),
    "NNM + trimmed mean": lambda f: only_by("nearest_neighbour_mixing", f=f, then={"name": "trimmed_mean", "b": f}),
    "bucketing + RFA": lambda f: only_by("bucketing"),
    "CAF": lambda f: only_by("caf", f=f),
    "ARC + NNM": lambda f: only_by("arc", f=f, then={"name": "nearest_neighbour_mixing", "f": f}),
    "DnC": lambda f: only_by("dnc", f=f),
    "FLAME": lambda f: only_by("flame"),
    "PID-MADE": lambda f: {"preset": "pid_made"},
    "auto": lambda f: {"preset": "auto"},
    ALIKE: lambda f: {"preset": "auto", "alike": True},
    PROBED: lambda f: {"preset": "auto"},
}
USUAL: Mapping[str, Mapping[str, Any]] = {
    "label flip": {"name": "label_flip"},
    "half of the labels": {"name": "label_flip", "fraction": 0.5},
    "noisy features": {"name": "feature_noise"},
    "backdoor": {"name": "backdoor"},
    "sign flip": {"name": "sign_flip"},
    "scaling": {"name": "scaling"},
    "Gaussian": {"name": "gaussian"},
    "ALIE": {"name": "alie"},
    "IPM": {"name": "ipm"},
    "Min-Max": {"name": "min_max"},
    "Min-Sum": {"name": "min_sum"},
    "free rider": {"name": "free_rider"},
    "Sybils": {"name": "sybil"},
    "adaptive": {"name": "adaptive"},
    "strongest": {"name": "strongest"},
}
NEWER: Mapping[str, Mapping[str, Any]] = {
    "mimic": {"name": "mimic"},
    "Fang": {"name": "fang"},
    "Fang on Krum": {"name": "fang_krum"},
    "ROP": {"name": "rop"},
    "sparse": {"name": "sparse"},
    "Neurotoxin": {"name": "neurotoxin"},
    "DBA": {"name": "dba"},
    "edge case": {"name": "edge_case"},
}
ATTACKS = {**USUAL, **NEWER}
GROUPS = {"usual": ("none", *USUAL), "newer": ("none", *NEWER)}
BACKDOORS = ("backdoor", "Neurotoxin", "DBA", "edge case")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "digits": {
        "data": {"dataset": "digits"},
        "model": {"name": "mlp", "hidden": [64]},
        "train": {"lr": 0.1, "momentum": 0.9, "epochs": 2, "batch_size": 16},
    },
    "mnist": {
        "data": {"dataset": "mnist", "limit": 12_000},
        "model": {"name": "mlp", "hidden": [128]},
        "train": {"lr": 0.05, "momentum": 0.9, "epochs": 1, "batch_size": 32},
    },
}


def check_data(data: str) -> None:
    if data not in SETTINGS:
        raise ConfigError(f"there are settings for {', '.join(SETTINGS)}; got {data!r}")


def plan(asked: Asked) -> Plan:
    """The grid, or the part of it with these defences and attacks; with a file, a comparison on its scenario."""
    if asked.file:
        return compare.plan(asked)
    if asked.settings:
        raise ConfigError("--set changes a scenario: name its file")
    data, rounds = asked.data or "digits", asked.rounds or 60
    check_data(data)
    check("defence", asked.defence, list(DEFENCES))
    check("attack", asked.attack, ["none", *ATTACKS, *GROUPS])
    attacks = chosen(asked.attack)
    wanted = [
        (cell, table)
        for cell, table in cells(range(asked.seeds or 5), data, rounds, asked.device or "cpu")
        if cell["defence"] in (asked.defence or DEFENCES) and (not attacks or cell["attack"] in attacks)
    ]
    return Plan(
        f"defences-{data}-{rounds}",
        wanted,
        "defences.md",
        lambda found: "\n\n".join([verdict(found), safety(found), ranking(found)]),
        page,
        pictures=write,
    )


def cells(
    seeds: Sequence[int], data: str = "digits", rounds: int = 60, device: str = "cpu"
) -> list[tuple[Cell, Table]]:
    """All cells of the grid on one data set; without attackers there is one cell per defence, whatever the attack."""
    found: list[tuple[Cell, Table]] = []
    cases = [("none", 0.0), *product(ATTACKS, SHARES)]
    for (attack, share), alpha, defence, seed in product(cases, ALPHAS, DEFENCES, seeds):
        f = round(share * CLIENTS)
        cell = {"attack": attack, "share": share, "alpha": alpha, "defence": defence, "seed": seed}
        own = {"clients": CLIENTS, "partition": division(alpha), "reserve": RESERVE}
        own["probe"] = RESERVE * (defence == PROBED)
        forged, group = attacks_of(attack, f) if f else [], 10 if device == "cpu" else CLIENTS
        table = scenario(SETTINGS[data], seed, rounds, DEFENCES[defence](f), own, forged, device=device, group=group)
        found.append((cell, table))
    return found


def chosen(asked: Sequence[str]) -> list[str]:
    """Names of attacks in which those of a group stand for its name.

    >>> chosen(["newer", "IPM"])[:2], chosen(["newer", "IPM"])[-1]
    (['none', 'mimic'], 'IPM')
    """
    return list(dict.fromkeys(name for word in asked for name in GROUPS.get(word, (word,))))


def attacks_of(attack: str, f: int) -> list[Table]:
    """The attacks of a scenario with f attackers; Neurotoxin forges the updates of clients with a backdoor.

    >>> [part["name"] for part in attacks_of("Neurotoxin", 2)]
    ['backdoor', 'neurotoxin']
    """
    if attack == "Neurotoxin":  # two attacks on the same clients
        return [{**ATTACKS[name], "count": f} for name in ("backdoor", attack)]
    return [{**ATTACKS[attack], "share": f / CLIENTS}]


def best_cells(results: Sequence[Mapping[str, Any]], defence: str = "auto") -> list[tuple[str, float, float, float]]:
    """Per attack, share and heterogeneity: how far the defence's mean accuracy lies below the best one's.

    The editions of ``auto`` are not compared with one another.
    """
    gaps = []
    for case, found in _cases(results).items():
        rivals = {d: v for d, v in found.items() if d == defence or not (d in OWN and defence in OWN)}
        means = {d: float(np.mean(v)) for d, v in rivals.items()}
        if defence in means:
            gaps.append((*case, max(means.values()) - means[defence]))
    return gaps


def verdict(results: Sequence[Mapping[str, Any]], defence: str = "auto") -> str:
    """In how many cells the defence is best or within one point of the best, and where it is not."""
    gaps = best_cells(results, defence)
    if not gaps:
        return f"`{defence}` was not run."
    missed = [g for g in gaps if g[3] > POINT]
    share = 1 - len(missed) / len(gaps)
    head = f"`{defence}` is best or within one point of the best in {len(gaps) - len(missed)} of {len(gaps)} cells "
    lines = [f"{head}({100 * share:.0f} %); the bar is {100 * NEAR:.0f} %."]
    if missed:
        rows = [[a, f"{100 * s:.0f} %", alpha, f"{100 * gap:.1f}"] for a, s, alpha, gap in sorted(missed, key=_by_gap)]
        lines += ["", "Where it is not:", "", markdown(("attack", "attackers", "Dirichlet", "points below"), rows)]
    return "\n".join(lines)


def losses(results: Sequence[Mapping[str, Any]], defence: str = PROBED) -> list[tuple[str, float, float, float]]:
    """Per attack, share and heterogeneity: how far the defence lies below FedAvg that nobody attacks."""
    cases = _cases(results)
    clean = {a: found["FedAvg"] for (attack, _, a), found in cases.items() if attack == "none" and "FedAvg" in found}
    return [
        (*case, float(np.mean(clean[case[2]]) - np.mean(found[defence])))
        for case, found in cases.items()
        if defence in found and case[2] in clean
    ]


def safety(results: Sequence[Mapping[str, Any]], defence: str = PROBED) -> str:
    """In how many cells the defence lies more than ten points below FedAvg without attack, and its worst cell."""
    found = losses(results, defence)
    if not found:
        return f"`{defence}` was not run, or FedAvg without attack was not."
    attack, share, alpha, worst = max(found, key=lambda loss: loss[3])
    many = sum(loss[3] > BOUND for loss in found)
    place = "without attack" if attack == "none" else f"with {100 * share:.0f} % attackers ({attack})"
    return (
        f"`{defence}` lies more than {100 * BOUND:.0f} points below FedAvg without attack in {many} of {len(found)} "
        f"cells; at worst {100 * worst:.1f} points, {place} at Dirichlet {alpha:g}. The bar is no cell."
    )


def successes(results: Sequence[Mapping[str, Any]], attack: str) -> Grid:
    """What the attackers reach of a backdoor under every defence, in percent: the mean over seeds."""
    places = list(product(SHARES, ALPHAS))
    rows = []
    for defence in DEFENCES:
        row = []
        for share, alpha in places:
            found = select(results, {"attack": attack, "share": share, "alpha": alpha, "defence": defence})
            reached = [r["attack_success"] for r in found if r.get("attack_success") is not None]
            row.append(_points(np.mean(reached)) if reached else "-")
        if set(row) != {"-"}:
            rows.append([defence, *row])
    return ["defence", *(f"{100 * share:.0f} %, Dirichlet {alpha:g}" for share, alpha in places)], rows


def ranking(results: Sequence[Mapping[str, Any]]) -> str:
    """Per defence: in how many cells it is best or within a point, its mean and its worst accuracy.

    The last column is its worst accuracy under its own strongest attacker.
    """
    rows = []
    for defence in DEFENCES:
        gaps = [g[3] for g in best_cells(results, defence)]
        means = {case: float(np.mean(found[defence])) for case, found in _cases(results).items() if defence in found}
        own = [value for case, value in means.items() if case[0] == "strongest"]
        if gaps:
            within, values = float(np.mean(np.array(gaps) <= POINT)), list(means.values())
            worst = [_points(min(values)), _points(min(own)) if own else "-"]
            rows.append((within, [defence, f"{100 * within:.0f} %", _points(np.mean(values)), *worst]))
    rows.sort(key=lambda row: -row[0])
    header = ("defence", "best or within a point", "mean accuracy", "worst cell", "worst under its strongest attacker")
    return markdown(header, [row for _, row in rows])


def table(results: Sequence[Mapping[str, Any]], attack: str) -> Grid:
    """Clean accuracy of every defence that was run against an attack, in points, with 95 % intervals over seeds."""
    places = [("none", 0.0, alpha) for alpha in ALPHAS] if attack == "none" else list(product([attack], SHARES, ALPHAS))
    cases = _cases(results)
    found = [cases.get(place, {}) for place in places]
    best = [max((float(np.mean(v)) for v in column.values()), default=0.0) for column in found]
    rows = []
    for defence in DEFENCES:
        row = []
        for column, top in zip(found, best, strict=True):
            text = confidence(column.get(defence, ()))
            row.append(f"**{text}**" if defence in column and np.mean(column[defence]) >= top - POINT else text)
        if set(row) != {"-"}:
            rows.append([defence, *row])
    return ["defence", *(f"{100 * share:.0f} %, Dirichlet {alpha:g}" for _, share, alpha in places)], rows


def detections(results: Sequence[Mapping[str, Any]]) -> Grid:
    """Attackers and honest clients that the guards excluded, per attack, over shares and heterogeneity."""
    rows = []
    for attack, defence in product(["none", *ATTACKS], ("PID-MADE", *OWN)):
        found = select(results, {"attack": attack, "defence": defence})
        if found:
            recall = f"{np.mean([r['caught'] / r['attackers'] for r in found]):.2f}" if found[0]["attackers"] else "-"
            wronged = f"{np.mean([r['wronged'] > 0 for r in found]):.2f}"
            rows.append([attack, defence, recall, wronged])
    return ("attack", "guard", "attackers excluded", "runs with an honest client excluded"), rows


def page(results: Sequence[Mapping[str, Any]]) -> str:
    """Everything as Markdown, with links to the tables that ``write`` makes."""
    parts = [verdict(results), safety(results), ranking(results), "[What the guards exclude](detections.csv)"]
    for attack in _present(results):
        gaps = [gap for name, _, _, gap in best_cells(results) if name == attack]
        near = sum(gap <= POINT for gap in gaps)
        parts.append(f"### {'No attack' if attack == 'none' else attack}")
        if gaps:
            parts.append(f"`auto` is best or within one point of the best in {near} of {len(gaps)} cells.")
        parts.append(f"[Clean accuracy in percent](accuracy-{stem(attack)}.csv)")
        if attack in BACKDOORS:
            parts.append(f"[Share of triggered inputs that fool the model, in percent](success-{stem(attack)}.csv)")
        if attack != "none":
            parts.append(f"![{attack}]({stem(attack)}.svg)")
    return "\n\n".join(parts)


def write(results: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """The tables and the pictures of a page."""
    tables = {"detections": detections(results)}
    for attack in _present(results):
        tables[f"accuracy-{stem(attack)}"] = table(results, attack)
        if attack in BACKDOORS:
            tables[f"success-{stem(attack)}"] = successes(results, attack)
    return [*(write_csv(folder / f"{name}.csv", grid) for name, grid in tables.items()), *draw(results, folder)]


def _present(results: Sequence[Mapping[str, Any]]) -> list[str]:
    return [attack for attack in ("none", *ATTACKS) if select(results, {"attack": attack})]


def stem(attack: str) -> str:
    """An attack's name in those of its files.

    >>> stem("half of the labels")
    'half-of-the-labels'
    """
    return attack.lower().replace(" ", "-")


def draw(results: Sequence[Mapping[str, Any]], folder: Path) -> list[Path]:
    """One picture per attack: accuracy over the share of attackers, a panel per heterogeneity."""
    paths = []
    for attack in ATTACKS:
        if select(results, {"attack": attack}):
            panels = {f"Dirichlet {alpha:g}": _lines(results, attack, alpha) for alpha in ALPHAS}
            path = folder / f"{stem(attack)}.svg"
            curves(path, panels, attack, "share of attackers", "clean accuracy", strong=("auto",))
            paths.append(path)
    return paths


def _lines(results: Sequence[Mapping[str, Any]], attack: str, alpha: float) -> dict[str, dict[float, list[float]]]:
    lines: dict[str, dict[float, list[float]]] = {}
    cases = _cases(results)
    for share in (0.0, *SHARES):
        for defence, values in cases.get((attack if share else "none", share, alpha), {}).items():
            lines.setdefault(defence, {})[share] = values
    return {d: line for d, line in lines.items() if len(line) > 1}


def _cases(results: Sequence[Mapping[str, Any]]) -> dict[tuple[str, float, float], dict[str, list[float]]]:
    """The accuracies of every defence by attack, share and heterogeneity."""
    found: dict[tuple[str, float, float], dict[str, list[float]]] = {}
    for r in results:
        c = r["cell"]
        case = found.setdefault((c["attack"], c["share"], c["alpha"]), {})
        case.setdefault(c["defence"], []).append(float(r["result"]["late_accuracy"]))
    order = ["none", *ATTACKS]
    return dict(sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1], -item[0][2])))


def _by_gap(gap: tuple[str, float, float, float]) -> float:
    return -gap[3]


def _points(value: Any) -> str:
    return f"{100 * float(value):.1f}"
