"""Figures of audits: what a source shows round by round, what it tells from what, and what hides it at which price."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from scipy.special import stdtr, stdtrit

from ..audit.verdict import Leakage
from ..core.types import Observation
from .theme import BAND, CYCLE, GREY, VERMILION, empty, figure, plain, whole_rounds

LEVEL = 0.05  # chance of a value outside the band


def leakage(
    observations: Sequence[Observation], source: str, metric: str, layer: str = "", dark: bool = False
) -> go.Figure:
    """One source by round: its values, the trend of its past, the band that chance explains, and the alarms."""
    title = plain(f"{source}, {metric.replace('_', ' ')}" + (f", {layer}" if layer else ""))
    found = [o for o in observations if (o.source, o.metric, o.layer) == (source, metric, layer)]
    if not found:
        return empty(title, "nothing has been observed yet", dark)
    rounds, value, expected = (np.array([getattr(o, k) for o in found]) for k in ("round", "value", "expected"))
    half = np.array([margin(o) for o in found])
    axes: dict[str, Any] = {
        "xaxis": {"title": {"text": "round"}, **whole_rounds(rounds)},
        "yaxis": {"title": {"text": "value"}},
    }
    fig = figure(title, dark, 380, **axes)
    if np.isfinite(half).any():
        for y, style in ((expected - half, {}), (expected + half, {"fill": "tonexty", "fillcolor": BAND,
                                                                  "name": "95 % of what chance gives"})):  # fmt: skip
            fig.add_scatter(x=rounds, y=y, mode="lines", line={"width": 0}, hoverinfo="skip", showlegend=bool(style),
                            **style)  # fmt: skip
    fig.add_scatter(x=rounds, y=expected, mode="lines", name="expected from the past", hoverinfo="skip",
                    line={"color": GREY, "dash": "dash", "width": 1.5})  # fmt: skip
    fig.add_scatter(
        x=rounds, y=value, mode="lines+markers", name="measured", line={"color": CYCLE[0], "width": 2},
        hoverinfo="text", text=[_words(o) for o in found],
    )  # fmt: skip
    if alarms := [o for o in found if o.alarm]:
        fig.add_scatter(
            x=[o.round for o in alarms], y=[o.value for o in alarms], mode="markers", name="alarm", hoverinfo="text",
            marker={"symbol": "diamond-open", "size": 14, "color": VERMILION, "line": {"width": 3}},
            text=[_words(o) for o in alarms],
        )  # fmt: skip
    return fig


def aurocs(verdicts: Mapping[str, Mapping[str, Leakage]], dark: bool = False) -> go.Figure:
    """How well each source tells the change from each null: {source: {null: verdict}}, with intervals."""
    title = "Does a source tell the change from its nulls?"
    if not verdicts:
        return empty(title, "no source has been judged", dark)
    nulls = list(dict.fromkeys(null for found in verdicts.values() for null in found))
    fig = figure(title, dark, 180 + 34 * len(verdicts), "AUROC: 0.5 cannot tell, 1 always tells")
    for k, null in enumerate(nulls):
        rows = [(i, name, found[null]) for i, (name, found) in enumerate(verdicts.items()) if null in found]
        shift = 0.28 * (k - (len(nulls) - 1) / 2)
        fig.add_scatter(
            x=[v.auroc for _, _, v in rows], y=[i + shift for i, _, _ in rows], mode="markers",
            name=f"against {plain(null)}", marker={"size": 8, "color": CYCLE[k % len(CYCLE)]},
            error_x={"type": "data", "symmetric": False, "array": [v.high - v.auroc for _, _, v in rows],
                     "arrayminus": [v.auroc - v.low for _, _, v in rows], "thickness": 1.5, "width": 3},
            hoverinfo="text",
            text=[f"{plain(name)} against {plain(null)}<br>AUROC {v.auroc:.2f} ({v.low:.2f} to {v.high:.2f}), "
                  f"p = {v.p:.2g}" for _, name, v in rows],
        )  # fmt: skip
    fig.add_vline(x=0.5, line={"color": GREY, "dash": "dash", "width": 1.5})
    names = {"tickvals": [*range(len(verdicts))], "ticktext": [plain(n) for n in verdicts]}
    fig.update_yaxes(**names, autorange="reversed", showgrid=False, zeroline=False)
    return fig.update_xaxes(title_text="AUROC", range=[-0.06, 1.06])


def margin(observation: Observation) -> float:
    """How far from the trend chance takes a value in 95 of 100 cases; NaN where the observation does not tell.

        half width = s w_m t_{0.975, m-2},   s = divergence / score,   2 P(T_{m-2} > |score| / w_m) = p

    ``w_m`` widens the deviation about a least-squares line through m values to that of the next one. Score and
    p-value together tell m, the length of the past that was looked at.
    """
    o = observation
    if not np.isfinite([o.divergence, o.score]).all() or o.score == 0 or not 0 < o.p < 1:
        return math.nan
    for m in range(3, 100):
        widening = math.sqrt(1 + 1 / m + 3 * (m + 1) / (m * (m - 1)))
        if math.isclose(2 * float(stdtr(m - 2, -abs(o.score) / widening)), o.p, rel_tol=1e-6):
            return o.divergence / o.score * widening * float(stdtrit(m - 2, 1 - LEVEL / 2))
    return math.nan


def _words(o: Observation) -> str:
    lines = [f"round {o.round}: {o.value:.4g}"]
    if math.isfinite(o.expected):
        lines.append(f"expected {o.expected:.4g}")
    if math.isfinite(o.p):
        lines.append(f"chance alone goes this far with probability {o.p:.2g}")
    if o.alarm:
        lines.append("alarm" + (f": classes {plain(', '.join(o.moved()))} moved" if o.moved() else ""))
    return "<br>".join(lines)
