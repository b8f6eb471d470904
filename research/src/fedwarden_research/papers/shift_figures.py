"""Figures 5 to 10 of the paper on shifts as tables of plain numbers, and what they say of its claims.

A departure is how far a source lies from its trend in the round of the change, relative to what the trend expects. It
stands beside that of the same seed without a change and with an unshifted swap of all samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

from fedwarden.core.stats import Scores

from ..studies.tables import Grid, Results, Sheet, columns
from .item import LEVEL, by_data, found_from, number, order_of, summary, too_few
from .shift_pictures import INTERNAL, changes, values
from .shift_tables import by_size, scores, severities, sources, verdicts
from .shifts import FRESH, STILL, VALIDATION, Change, ratio

NEARLY_LINEAR = 0.9  # a correlation that a sample must be able to rule out before it is said to be "not linear"
PAPERS = ("cosine", "procrustes", "cmd")  # the shift metrics of the paper, K = 5
OF_FIGURE = {
    "mnist": ("7a", "gradients/cmd/"),
    "fashion_mnist": ("7b", "gradients/cosine/"),
    "census": ("7c", "representations/cmd/"),
}
TREND = {"mnist": "gradients/cosine/", "fashion_mnist": "gradients/cosine/", "census": "representations/cmd/"}
WITH_NULLS = columns(
    "no change | no change sd | fresh swap | fresh swap sd | shift | shift sd | AUROC, no change | p, no change | "
    "AUROC, fresh swap | p, fresh swap | seeds"
)


def with_nulls(results: Results, key: str, shift: Change) -> list[str]:
    """The columns ``WITH_NULLS``: departures of one source, and how well it tells the shift from either null."""
    cells = [x for branch in (STILL, FRESH, shift) for x in summary(scores(results, branch, key))]
    found = verdicts(results, key, shift, [STILL, FRESH])
    told = [x for null in (STILL, FRESH) for x in (number(found[null].auroc), number(found[null].p))]
    return [*cells, *told, str(len(results))]


def departures(results: Results) -> Grid:
    """A row for each number of clients and source, at the largest ratio that was tried."""
    rows = []
    for (n, m), part in by_size(results).items():
        shift = Change("fresh", severities(part)[-1])
        rows += [
            [str(n), str(m), *key.split("/")[:2], ratio(severities(part)[-1]), *with_nulls(part, key, shift)]
            for key in sources(part)
        ]
    return ["clients", "change", "source", "metric", "ratio", *WITH_NULLS], rows


def trends(results: Results, keys: Sequence[str]) -> Grid:
    """What each source read over the rounds, mean and deviation over seeds; of a cosine 1 minus it."""
    rows = []
    for (n, _), part in by_size(results).items():
        for key in keys:
            for label, branch in changes(part).items():
                for t, read in sorted(values(part, branch, key).items()):
                    rows.append([str(n), *key.split("/"), label, str(t), *summary(np.array(read)), str(len(read))])
    return ["clients", "source", "metric", "layer", "change", "round", "mean", "sd", "seeds"], rows


def tells(row: Mapping[str, str], null: str) -> bool:
    """Whether a source's departures at the shift lie above those of a null, by the rank test of its row."""
    return float(row[f"p, {null}"]) <= LEVEL


def centralised_sheets(results: Results) -> list[Sheet]:
    return [
        Sheet("departures", "Departure from the trend in epoch 11", departures(results)),
        Sheet("trends", "Every source over the epochs", trends(results, sources(results))),
    ]


def centralised_holds(sheets: Mapping[str, Sheet]) -> str:
    """Figure 5: all nine sources show the shift, the validation loss does not."""
    rows = sheets["departures"].records()
    if unsure := too_few(rows):
        return unsure
    nine = [row for row in rows if row["source"] in INTERNAL and row["metric"] in PAPERS]
    loss = next(row for row in rows if row["source"] == "validation")
    shown = sum(tells(row, STILL) for row in nine)
    itself = sum(tells(row, FRESH) for row in nine)
    silent = not tells(loss, STILL)
    word = "holds" if shown == len(nine) and silent else "holds in part" if shown else "does not hold"
    literal = [row for row in rows if row["metric"] == "procrustes_literal"]
    ours = [row for row in nine if row["metric"] == "procrustes"]
    why = "" if itself else ", so that they show new samples, not the shift"
    return (
        f"The claim {word}: {shown} of {len(nine)} sources lie farther from their trend than without a change, and the "
        f"validation loss {'does not' if silent else 'does too'}; compared with an unshifted swap of all samples "
        f"{itself} of {len(nine)} do{why}. Procrustes by the paper's equation tells it from no change in "
        f"{sum(tells(row, STILL) for row in literal)} of {len(literal)} sources, centred and scaled in "
        f"{sum(tells(row, STILL) for row in ours)} of {len(ours)}. {found_from(rows)}"
    )


def layer_keys(results: Results, source: str) -> dict[str, str]:
    """The layers of a source in the order of the model, by name."""
    start = f"{source}/cosine/"
    return {k.removeprefix(start): k for k in sources(results, layers=True) if k.startswith(start) and k != start}


def reaction(results: Results, key: str, branch: Change) -> Scores:
    """How far a source leaves its trend at the change, as a share of the range of its whole curve, once per seed."""
    found = []
    for r in sorted(results, key=lambda r: int(r["cell"]["seed"])):
        played = r["result"]["branches"][str(branch)]["readings"][key]
        curve = [row[1] for row in (*r["result"]["before"]["readings"][key], *played)]
        span = max(curve) - min(curve)
        found.append(abs(played[0][1] - played[0][2]) / span if span else 0.0)
    return np.array(found)


def layers_sheets(results: Results) -> list[Sheet]:
    shift = Change("fresh", severities(results)[-1])
    head = ["source", "layer", "depth", "reaction", "reaction sd", "at a fresh swap", "at a fresh swap sd", *WITH_NULLS]
    rows, order = [], []
    for source in INTERNAL:
        layers = layer_keys(results, source)
        for depth, (layer, key) in enumerate({"": f"{source}/cosine/", **layers}.items()):
            react = [x for b in (shift, Change(FRESH)) for x in summary(reaction(results, key, b))]
            rows.append([source, layer or "whole model", str(depth), *react, *with_nulls(results, key, shift)])
        means = [float(reaction(results, key, shift).mean()) for key in layers.values()]
        rho, p = order_of(means)
        order.append([source, str(len(means)), number(rho), number(p), str(len(results))])
    keys = [k for source in INTERNAL for k in layer_keys(results, source).values()]
    return [
        Sheet("layers", "Cosine by layer: reaction as a share of the curve's range, and departure", (head, rows)),
        Sheet(
            "order", "Rank correlation of depth and reaction", (["source", "layers", "rho", "p", "seeds"], order)
        ),
        Sheet("trends", "Cosine of every layer over the epochs", trends(results, keys)),
    ]  # fmt: skip


def layers_hold(sheets: Mapping[str, Sheet]) -> str:
    """Figure 6: later layers say more, in weights and representations; no layer is to be preferred to the whole."""
    order, rows = sheets["order"].records(), sheets["layers"].records()
    if unsure := too_few(order):
        return unsure
    sure = {r["source"]: float(r["rho"]) for r in order if float(r["p"]) <= LEVEL}
    named = ("weights", "representations")
    deeper = [s for s in named if sure.get(s, 0) > 0]
    shallower = [s for s in named if sure.get(s, 0) < 0]
    if shallower:
        first = f"The claim does not hold: in {' and '.join(shallower)} earlier layers react more"
    elif len(deeper) == len(named):
        first = "The claim holds: in weights and representations later layers react more"
    else:
        open_ = [s for s in named if s not in sure]
        first = f"Cannot tell for {' and '.join(open_)}: depth and reaction are not tied beyond chance"
    rhos = ", ".join(f"{r['source']} {float(r['rho']):.2f} (p {float(r['p']):.2g})" for r in order)
    best = sum(tells(r, FRESH) for r in rows if r["layer"] != "whole model")
    whole = sum(tells(r, FRESH) for r in rows if r["layer"] == "whole model")
    return (
        f"{first}; rank correlations: {rhos}. Compared with an unshifted swap {best} of "
        f"{len(rows) - len(order)} layers tell the shift, and {whole} of {len(order)} whole models. "
        f"{found_from(order)}"
    )


def line(x: Sequence[float], y: Sequence[float]) -> tuple[float, float, float, str]:
    """Slope, correlation, p-value and verdict of a straight line: "linear", "not linear" or "cannot tell".

    It is linear where the slope differs from 0 at 5 %. It is not where, besides, the 95 % interval of the correlation
    (Fisher's z) lies below .9: with few points it seldom does, and then the sample cannot tell.

    >>> line([0, 1, 2, 3, 4], [1.0, 3.0, 5.0, 7.0, 9.1])[3], line([0, 1, 2], [1.0, 0.0, 1.0])[3]
    ('linear', 'cannot tell')
    """
    fit = stats.linregress(x, y)
    if fit.pvalue <= LEVEL and fit.slope > 0:
        verdict = "linear"
    else:
        high = np.tanh(np.arctanh(fit.rvalue) + 1.96 / np.sqrt(len(x) - 3)) if len(x) > 3 else 1.0
        verdict = "not linear" if high < NEARLY_LINEAR else "cannot tell"
    return float(fit.slope), float(fit.rvalue), float(fit.pvalue), verdict


def sensitivity_sheets(results: Results) -> list[Sheet]:
    points, lines = [], []
    for data, part in by_data(results).items():
        figure, chosen = OF_FIGURE.get(data, ("", ""))
        tried = severities(part)
        keys = sources(part)
        for key in keys:
            source, metric, _ = key.split("/")
            swap, loss = (float(scores(part, FRESH, k).mean()) for k in (key, VALIDATION))
            means = []
            for even in tried:
                mine, other = (scores(part, Change("fresh", even), k) for k in (key, VALIDATION))
                means.append(float(mine.mean()))
                above = "yes" if mine.mean() > other.mean() else "no"
                found = verdicts(part, key, Change("fresh", even), [STILL, FRESH])
                told = [x for n in (STILL, FRESH) for x in (number(found[n].auroc), number(found[n].p))]
                points.append([
                    data, source, metric, ratio(even), *summary(mine), *summary(other), above, *told, str(len(part)),
                ])  # fmt: skip
            slope, r, p, verdict = line(tried, means)
            over = sum(row[8] == "yes" for row in points[-len(tried) :])
            lines.append([
                data, figure if key == chosen else "", source, metric, number(slope), number(r), number(p), verdict,
                f"{over} of {len(tried)}", "yes" if swap > loss else "no", str(len(part)),
            ])  # fmt: skip
    head = columns(
        "data | source | metric | ratio | departure | departure sd | of the loss | of the loss sd | "
        "above the diagonal | AUROC, no change | p, no change | AUROC, fresh swap | p, fresh swap | seeds"
    )
    line_head = columns(
        "data | figure | source | metric | slope | r | p | relation | above the diagonal | an unshifted swap too | "
        "seeds"
    )
    of_paper = [row for row in lines if row[1]]
    return [
        Sheet("relation", "The paper's sources: departure over the severity, and the diagonal", (line_head, of_paper)),
        Sheet("relations", "The same for every source", (line_head, lines)),
        Sheet("points", "Departure of every source beside that of the validation loss", (head, points)),
    ]


def sensitivity_holds(sheets: Mapping[str, Sheet]) -> str:
    """Figure 7: sources leave their trend more than the loss; on Census they grow linearly with the shift."""
    rows, points = sheets["relation"].records(), sheets["points"].records()
    if unsure := too_few(rows):
        return unsure
    parts = []
    for row in rows:
        source, metric = row["source"], row["metric"]
        mine = [p for p in points if (p["data"], p["source"], p["metric"]) == (row["data"], source, metric)]
        loss = [p for p in points if (p["data"], p["source"]) == (row["data"], "validation")]
        shown, quiet = _first_told(mine, STILL), _first_told(loss, STILL)
        if row["figure"] == "7c":
            word = {"linear": "holds", "not linear": "does not hold", "cannot tell": "cannot be told"}[row["relation"]]
        else:
            word = "holds" if shown < quiet else "does not hold"
        parts.append(
            f"On {row['data']} ({row['figure']}) the claim {word}: {source} by {metric} tell a shift from no change "
            f"{_since(mine, shown)}, the loss {_since(loss, quiet)}; from a fresh swap the source tells it "
            f"{_since(mine, _first_told(mine, FRESH))}. {row['above the diagonal']} points lie above the diagonal, "
            f"and that of an unshifted swap {'too' if row['an unshifted swap too'] == 'yes' else 'does not'}; over the "
            f"severity the departure is {_related(row)}."
        )
    return " ".join([*parts, found_from(rows)])


def _first_told(points: Sequence[Mapping[str, str]], null: str) -> int:
    """The place of the smallest ratio that is told from a null; one after the last where none is."""
    return next((i for i, point in enumerate(points) if tells(point, null)), len(points))


def _since(points: Sequence[Mapping[str, str]], place: int) -> str:
    return f"at {points[place]['ratio']} first" if place < len(points) else "at no ratio"


def _related(row: Mapping[str, str]) -> str:
    words = {"linear": "linear", "not linear": "not linear", "cannot tell": "perhaps linear: these points cannot tell"}
    return f"{words[row['relation']]} (r {float(row['r']):.2f}, p {float(row['p']):.2g})"


def scalability_sheets(results: Results) -> list[Sheet]:
    (data,) = by_data(results)
    header, rows = departures(results)
    shown = [key.split("/")[:2] for key in (TREND.get(data, TREND["mnist"]), VALIDATION)]
    few = [row for row in rows if list(row[2:4]) in shown]
    keys = [k for k in (TREND.get(data, TREND["mnist"]), VALIDATION) if k in sources(results)]
    return [
        Sheet("paper", "The paper's source and the validation loss in the round of the change", (header, few)),
        Sheet("departures", "Every source in the round of the change", (header, rows)),
        Sheet("trends", "Both over the rounds", trends(results, keys)),
    ]


def scalability_holds(sheets: Mapping[str, Sheet]) -> str:
    """Figures 8 to 10: the shift shows for every number of clients, the validation loss shows nothing."""
    rows = sheets["paper"].records()
    if unsure := too_few(rows):
        return unsure
    mine = [row for row in rows if row["source"] != "validation"]
    loss = [row for row in rows if row["source"] == "validation"]
    shown = [row["clients"] for row in mine if tells(row, STILL)]
    itself = [row["clients"] for row in mine if tells(row, FRESH)]
    loud = [row["clients"] for row in loss if tells(row, STILL)]
    word = "holds" if len(shown) == len(mine) and not loud else "holds in part" if shown else "does not hold"
    return (
        f"The claim {word}: {mine[0]['source']} by {mine[0]['metric']} tell the shift from no change with "
        f"{_listed(shown)}, and the validation loss with {_listed(loud)}; from an unshifted swap of all samples the "
        f"source tells it with {_listed(itself)}. {found_from(rows)}"
    )


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names) if names else 'no number of'} clients"
