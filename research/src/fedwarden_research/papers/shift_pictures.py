"""Pictures of the studies of shifts: a panel per source, the shift beside its nulls.

A source that sees the shift keeps it apart from the swap; of one that sees new samples only, the two lines are one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from fedwarden.audit.verdict import BY_CLASS
from fedwarden.core.separation import auroc

from ..studies.pictures import COLOURS, FAINT, STRONG, Panels, curves, drawing
from ..studies.tables import Results
from .shift_tables import by_size, name, scores, severities, sources
from .shifts import FRESH, STILL, VALIDATION, Change, ratio

INTERNAL = ("weights", "gradients", "representations")
SHOWN = (
    *(f"{source}/{metric}/" for source in INTERNAL for metric in ("cosine", "procrustes", "cmd")),
    "evaluation/loss/",
    VALIDATION,
    *(f"outputs/{metric}/" for metric in BY_CLASS),
)
SWAP, FEWER = "partial swap", "shift by as few samples as it takes"
SHIFT = "shift by fresh samples"
CHANCE = "chance"
WHOLE = "all"


@dataclass(frozen=True)
class Picture:
    """What is drawn of a study's results; call it with them, a file and a title."""

    panels: Callable[[Results], Panels]
    x: str
    y: str
    columns: int = 3
    log: bool = True  # panels of values that differ by orders, each with an axis of its own

    def __call__(self, results: Results, path: Path, title: str) -> Path:
        loud = (SHIFT, shift_to(severities(results)[-1]))
        title = f"{title}: {extent(results)}"
        curves(path, self.panels(results), title, self.x, self.y, loud, not self.log, self.columns, self.log)
        return path


def extent(results: Results) -> str:
    """How many clients and seeds there are results of.

    >>> extent([{"cell": {"n": n, "seed": seed}} for n in (2, 10) for seed in range(5)])
    '2, 10 clients, 5 seeds'
    """
    sizes = sorted({r["cell"]["n"] for r in results})
    who = "one model" if sizes == [1] else f"{', '.join(map(str, sizes))} clients"
    return f"{who}, {len({r['cell']['seed'] for r in results})} seeds"


def shift_to(even: float) -> str:
    return f"shift to {ratio(even)}"


def changes(results: Results) -> dict[str, Change]:
    """The branches in which all samples are new, and the one without a change, by what they are called in a legend."""
    shifts = {shift_to(e): Change("fresh", e) for e in severities(results)}
    return {STILL: Change(STILL), FRESH: Change(FRESH)} | shifts


def values(results: Results, branch: Change, key: str) -> dict[int, list[float]]:
    """What a source read in each round, before the change and after it, once per seed; of a cosine 1 minus it."""
    found: dict[int, list[float]] = {}
    cosine = key.split("/")[1] == "cosine"
    for r in results:
        for part in (r["result"]["before"], r["result"]["branches"][str(branch)]):
            for t, value, *_ in part["readings"].get(key, ()):
                found.setdefault(int(t), []).append(1 - value if cosine else value)
    return found


def over_rounds(results: Results) -> Panels:
    """The values of each source."""
    drawn = changes(results)
    return {
        name(key).replace("cosine", "1 - cosine"): {label: values(results, b, key) for label, b in drawn.items()}
        for key in _shown(results)
    }


def over_layer_rounds(results: Results) -> Panels:
    """The cosine of each layer over the rounds with the shift, in every run brought to [0, 1]: means over seeds."""
    shift = Change("fresh", severities(results)[-1])
    known = sources(results, layers=True)
    panels: dict[str, dict[str, dict[int, list[float]]]] = {}
    for source in INTERNAL:
        start = f"{source}/cosine/"
        lines = panels.setdefault(source, {})
        for key in (key for key in known if key.startswith(start) and key != start):
            found: dict[int, list[float]] = {}
            for r in results:
                for t, value in _unit_range(values([r], shift, key)).items():
                    found.setdefault(t, []).append(value)
            lines[key.removeprefix(start)] = {t: [fmean(v)] for t, v in found.items()}
    return panels


def _unit_range(curve: dict[int, list[float]]) -> dict[int, float]:
    low, high = min(min(v) for v in curve.values()), max(max(v) for v in curve.values())
    return {t: (v[0] - low) / ((high - low) or 1.0) for t, v in curve.items()}


def over_rounds_by_clients(source: str) -> Callable[[Results], Panels]:
    """One source and the validation loss over the rounds, a panel for each number of clients."""

    def panels(results: Results) -> Panels:
        parts = by_size(results)
        return {
            f"{name(key).replace('cosine', '1 - cosine')}: {n} clients": {
                label: values(part, branch, key) for label, branch in changes(part).items()
            }
            for key in (source, VALIDATION)
            for (n, _), part in parts.items()
        }

    return panels


def diagonal(path: Path, points: Mapping[str, Mapping[str, tuple[float, float]]], title: str) -> Path:
    """Points by name in panels by title, their first number to the right, and the line on which both are equal."""
    plt = drawing()
    figure, axes = plt.subplots(1, len(points), figsize=(4.4 * len(points), 4.2), squeeze=False, layout="constrained")
    for axis, (panel, named) in zip(axes.flat, points.items(), strict=True):
        both = [v for point in named.values() for v in point if v > 0]
        ends = (min(both) / 2, max(both) * 2)
        axis.plot(ends, ends, color=FAINT, linewidth=1)
        for label, (x, y) in named.items():
            axis.scatter([x], [y], color=STRONG if label != FRESH else COLOURS[1], s=24)
            axis.annotate(label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)
        axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=panel)
        axis.set_xlabel("departure of the validation loss")
        axis.set_ylabel("departure of the source" if axis is axes.flat[0] else "")
        axis.grid(color=FAINT, alpha=0.25)
    figure.suptitle(title)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
    return path


def over_layers(results: Results) -> Panels:
    """The departures of each source in the whole model and in each layer."""
    known = sources(results, layers=True)
    panels = {}
    for whole in (key for key in _shown(results) if key.startswith(INTERNAL)):
        layers = {key.removeprefix(whole) or WHOLE: key for key in known if key.startswith(whole)}
        panels[name(whole)] = {
            label: {layer: list(scores(results, branch, key)) for layer, key in layers.items()}
            for label, branch in changes(results).items()
        }
    return panels


def over_severities(results: Results) -> Panels:
    """The departures of each source for every ratio, by either kind of exchange, each beside its null."""
    kinds = {STILL: STILL, FRESH: FRESH, SHIFT: "fresh", SWAP: "partial swap", FEWER: "partial"}
    tried = severities(results)

    def branch(kind: str, even: float) -> Change:
        return Change(kind) if kind in (STILL, FRESH) else Change(kind, even)

    return {
        _unit(key): {
            label: {ratio(e): list(scores(results, branch(kind, e), key)) for e in tried}
            for label, kind in kinds.items()
        }
        for key in _shown(results)
    }


def over_clients(results: Results) -> Panels:
    """The departures of each source for every number of clients."""
    parts = by_size(results)
    return {
        _unit(key): {
            label: {f"{m} of {n}": list(scores(part, branch, key)) for (n, m), part in parts.items()}
            for label, branch in changes(results).items()
        }
        for key in _shown(results)
    }


def certainty(results: Results) -> Panels:
    """AUROC for every ratio: a row per kind of source, a panel per kind of swap, a line per metric."""
    tried = severities(results)
    panels: dict[str, dict[str, dict[str, list[float]]]] = {}
    for source, keys in groupby(sources(results), key=lambda key: key.split("/")[0]):
        mine = list(keys)
        for kind, null in (("fresh", FRESH), ("partial", SWAP)):
            lines = {CHANCE: {ratio(e): [0.5] for e in tried}}
            for key in mine:
                metric = key.split("/")[1].replace("_", " ")
                lines[metric] = {ratio(e): [_told(results, key, kind, e)] for e in tried}
            panels[f"{source}, against a {null}"] = lines
    return panels


def over_sizes(results: Results) -> Panels:
    """AUROC of each source against a fresh swap for every ratio: a line per number of clients."""
    tried = severities(results)
    lines = {f"{m} of {n} clients": part for (n, m), part in by_size(results).items()}
    return {
        name(key): {CHANCE: {ratio(e): [0.5] for e in tried}}
        | {label: {ratio(e): [_told(part, key, "fresh", e)] for e in tried} for label, part in lines.items()}
        for key in _shown(results)
    }


def _told(results: Results, key: str, kind: str, even: float) -> float:
    null = Change(FRESH) if kind == "fresh" else Change("partial swap", even)
    return auroc(scores(results, Change(kind, even), key), scores(results, null, key))


def _shown(results: Results) -> list[str]:
    known = sources(results)
    return [key for key in SHOWN if key in known]


def _unit(key: str) -> str:
    """A source and, where its departure is not relative, in what it is counted."""
    return name(key) + (" (past deviations)" if key.split("/")[1] in BY_CLASS else "")


DEPARTURE = "relative departure"
ROUNDS = Picture(over_rounds, "round", "value")
LAYERS = Picture(over_layers, "layer", DEPARTURE)
SEVERITIES = Picture(over_severities, "even to odd classes after the change", DEPARTURE)
CLIENTS = Picture(over_clients, "clients that change, of all", DEPARTURE)
SIZES = Picture(over_sizes, "even to odd classes after the change", "AUROC", log=False)
CERTAINTY = Picture(certainty, "even to odd classes after the change", "AUROC", columns=2, log=False)
