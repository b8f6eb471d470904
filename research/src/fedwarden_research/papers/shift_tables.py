"""Tables of the studies of shifts: which source tells a shift from each of its nulls, and from which severity on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from fedwarden.audit.verdict import Leakage, Sight, leakage, magnitude, sees
from fedwarden.core.separation import tpr_at
from fedwarden.core.stats import Scores
from fedwarden.core.types import Observation

from ..studies.tables import Grid, Results, Sheet
from .shifts import FRESH, STILL, Change, ratio


def departure(key: str, reading: Sequence[float]) -> float:
    """How far one reading lies from what was expected.

    >>> departure("weights/cosine/", [11, 0.25, 0.5, -3.0, 0.1, 0.0])
    0.5
    """
    source, metric, layer = key.split("/")
    t, value, expected, score, p, alarm = reading
    return magnitude(Observation(int(t), source, metric, layer, value, expected, score, p, bool(alarm)))


def scores(results: Results, branch: Change | str, key: str) -> Scores:
    """The departure of a source in the round of the change, once per seed, in the order of the seeds."""
    found = sorted(results, key=lambda r: int(r["cell"]["seed"]))
    first = [r["result"]["branches"][str(branch)]["readings"].get(key) for r in found]
    return np.array([math.nan if x is None else departure(key, x[0]) for x in first])


def sources(results: Results, layers: bool = False) -> list[str]:
    """The sources that have a finite departure in every branch of every seed, as they were read."""
    present = results[0]["result"]["branches"]
    keys = [k for k in present[STILL]["readings"] if layers or k.endswith("/")]
    return [k for k in keys if all(np.isfinite(scores(results, b, k)).all() for b in present)]


def verdicts(results: Results, key: str, shift: Change, nulls: Sequence[Change | str]) -> dict[str, Leakage]:
    """A source's verdict on one shift against each null."""
    against = {str(null): scores(results, null, key) for null in nulls}
    return leakage(scores(results, shift, key), against, np.random.default_rng(0))


def auroc(found: Leakage) -> str:
    """AUROC and its interval; bold where it tells the shift from the null.

    >>> auroc(Leakage(0.9, 0.75, 1.0, 0.01, 0.5, 0.001)), auroc(Leakage(0.5, 0.3, 0.7, 0.5, 0.0, 0.001))
    ('**.90** (.75 to 1)', '.50 (.30 to .70)')
    """
    text, low, high = (_short(x) for x in (found.auroc, found.low, found.high))
    return f"{f'**{text}**' if found.low > 0.5 and found.p <= 0.05 else text} ({low} to {high})"


def severities(results: Results) -> list[float]:
    """The shares of even classes that were tried."""
    return [kept["even"] for kept in results[0]["result"]["branches"].values() if kept["kind"] == "fresh"]


def fresh_table(results: Results) -> Grid:
    """All data exchanged: AUROC against no change and against a fresh swap, and the smallest shift detected."""
    tried = severities(results)
    head = ["source", f"no change, {ratio(tried[-1])}", *(f"fresh swap, {ratio(e)}" for e in tried)]
    rows = []
    for key in sources(results):
        still = verdicts(results, key, Change("fresh", tried[-1]), [STILL])[STILL]
        fresh = [verdicts(results, key, Change("fresh", e), [FRESH])[FRESH] for e in tried]
        rows.append([name(key), auroc(still), *map(auroc, fresh), smallest(results, key)])
    return [*head, "smallest detected"], rows


def smallest_detected(
    severities: Mapping[float, Scores], null: Scores, rate: float = 0.05, power: float = 0.8
) -> float | None:
    """The smallest shift that is found in a share ``power`` of the runs, and so is every larger one; None if none is.

    >>> scores = {0.55: np.array([1.0, 2.0]), 0.7: np.array([9.0, 8.0]), 0.9: np.array([9.0, 9.5])}
    >>> smallest_detected(scores, np.arange(5.0))
    0.7
    """
    found = None
    for severity in sorted(severities, reverse=True):
        if tpr_at(severities[severity], null, rate) < power:
            break
        found = severity
    return found


def smallest(results: Results, key: str) -> str:
    """The smallest shift by fresh samples that a source detects at 5 % false alarms, and so every larger one."""
    shifted = {e: scores(results, Change("fresh", e), key) for e in severities(results)}
    found = smallest_detected(shifted, scores(results, FRESH, key))
    return "-" if found is None else ratio(found)


def partial_table(results: Results) -> Grid:
    """As few samples exchanged as the shift takes, against an unshifted exchange of as many."""
    tried = severities(results)
    rows = []
    for key in sources(results):
        fair = [verdicts(results, key, Change("partial", e), [Change("partial swap", e)]) for e in tried]
        still = verdicts(results, key, Change("partial", tried[-1]), [STILL])[STILL]
        rows.append([name(key), auroc(still), *(auroc(next(iter(f.values()))) for f in fair)])
    head = ["source", f"no change, {ratio(tried[-1])}", *(f"partial swap, {ratio(e)}" for e in tried)]
    return head, rows


def seen(sight: Sight) -> str:
    """What a source sees, in a word or two.

    >>> seen(Sight("does not show", "shows")), seen(Sight("cannot tell", "cannot tell"))
    ('new samples', 'cannot tell')
    """
    if sight.shift == "shows":
        return "the shift"
    if sight.new == "shows":
        return "new samples"
    return "cannot tell" if "cannot tell" in (sight.shift, sight.new) else "nothing"


def sight_table(results: Results) -> Grid:
    """What each source sees: the shift, new samples, or nothing, for every severity."""
    tried = severities(results)
    rows = []
    for key in sources(results):
        row = [seen(sees(verdicts(results, key, Change("fresh", e), [STILL, FRESH]))) for e in tried]
        rows.append([name(key), *row])
    return ["source", *(ratio(e) for e in tried)], rows


def alarms_table(results: Results) -> Grid:
    """The share of seeds with an alarm of the auditor's own test in the round of the change."""
    tried = severities(results)
    shown = {STILL: STILL, FRESH: FRESH} | {ratio(e): str(Change("fresh", e)) for e in tried}
    rows = []
    for key in sources(results):
        found = [[r["result"]["branches"][b]["readings"][key][0][5] for r in results] for b in shown.values()]
        rows.append([name(key), *(f"{np.mean(raised):.2f}" for raised in found)])
    return ["source", *shown], rows


def layer_table(results: Results) -> Grid:
    """AUROC of the shift against no change and a fresh swap, for every layer."""
    shift = Change("fresh", severities(results)[-1])
    rows = []
    for key in sources(results, layers=True):
        source, metric, layer = key.split("/")
        if source in ("weights", "representations", "gradients"):
            found = verdicts(results, key, shift, [STILL, FRESH])
            rows.append([source, metric, layer or "whole model", auroc(found[STILL]), auroc(found[FRESH])])
    return ["source", "metric", "layer", "against no change", "against a fresh swap"], rows


def by_size(results: Results) -> dict[tuple[int, int], Results]:
    """The results of each number of clients, and of how many of them change."""
    sizes = sorted({(r["cell"]["n"], r["cell"]["m"]) for r in results})
    return {(n, m): [r for r in results if r["cell"]["n"] == n] for n, m in sizes}


def by_clients(results: Results, kind: str, what: str, table: Callable[[Results], Grid]) -> list[Sheet]:
    """A table for each number of clients, which is in its name."""
    parts = []
    for (n, m), part in by_size(results).items():
        who = "one model" if n == 1 else f"{n} clients, {m} of which change{'s' * (m == 1)}"
        parts.append(Sheet(f"{kind}-{n}", f"{what}: {who}, {len(part)} seeds", table(part)))
    return parts


def clients_table(results: Results, kind: str) -> Grid:
    """AUROC of each source against the null of a kind of swap, for every number of clients and severity."""
    parts, tried = by_size(results), severities(results)
    rows = []
    for key in sources(results):
        cells = []
        for part in parts.values():
            for even in tried:
                null = Change(FRESH) if kind == "fresh" else Change("partial swap", even)
                cells.append(auroc(verdicts(part, key, Change(kind, even), [null])[str(null)]))
        rows.append([name(key), *cells])
    heads = [f"{m} of {n} clients, {ratio(even)}" for n, m in parts for even in tried]
    return ["source", *heads], rows


def smallest_table(results: Results) -> Grid:
    """The smallest shift that each source detects, for every number of clients."""
    parts = by_size(results)
    rows = [[name(key), *(smallest(part, key) for part in parts.values())] for key in sources(results)]
    return ["source", *(f"{m} of {n} clients" for n, m in parts)], rows


def name(key: str) -> str:
    """A source as it is written in tables."""
    source, metric, layer = key.split("/")
    return f"{source}, {metric.replace('_', ' ')}" + (f", {layer}" if layer else "")


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0") if value < 0.995 else "1"
