"""Clients x rounds of one watch: which clients were flagged when, compared with the limit of the round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..core.errors import ConfigError, nearest
from ..core.words import count, number
from ..store.series import Grid, Series, WatchSeries
from .grids import ABOVE, finite, nearness, pool_all, pool_highest, ranges, robust_rows, top
from .theme import BAND, FAINT, HEAT, HEAT_DARK, VERMILION, empty, figure, labels, plain

Scale = Literal["limit", "linear", "log", "robust z"]

ROWS, COLUMNS = 200, 200  # cells that a screen shows; of more, the highest of neighbours is drawn
FAR = 10.0  # robust deviations at which the colour scale ends
BELOW = -1.0  # where the scale of median (0) and limit (1) begins
DECADES = 4.0  # powers of ten that the log scale shows below the highest score


def heatmap(series: Series, watch: str, scale: Scale = "limit", dark: bool = False) -> go.Figure:
    """Clients x rounds of a watch's scores; crosses mark the exclusions that this watch decided.

    Grey are the rounds that a client stood excluded, and paler those in which the watch had no limit. A cell's
    ``customdata`` is (score, limit, position of the client in ``series.clients``).
    """
    seen, title = watch_of(series, watch), f"{plain(watch)}: scores by client and round"
    if why := untold(series, seen):
        return empty(title, why, dark)
    step = -(-len(series.clients) // ROWS), -(-len(series) // COLUMNS)
    scores, who = pool_highest(seen.scores.T, step)
    colours, bar = _colours(seen, scale, dark)
    shown, _ = pool_highest(np.where(np.isposinf(colours), top(colours), colours).T, step)
    limits = finite(seen.threshold)[:: step[1]]
    cells = np.stack([scores, np.broadcast_to(limits, scores.shape), who], axis=-1).astype(np.float32)
    names, rounds = ranges(labels(series.clients), step[0]), ranges([str(t) for t in series.rounds], step[1], "-")
    pooled = step != (1, 1)
    places = {c: (series.clients.index(c), int(np.searchsorted(series.rounds, t))) for c, t in exclusions(series)}
    mine = {c: (j, i) for c, (j, i) in places.items() if seen.flagged[i, j]}
    fig = figure(title, dark, min(860, max(320, 190 + 18 * len(names))), _subtitle(step, len(places) - len(mine)))
    gone = pool_all(series.excluded.T, step) & np.isnan(scores)
    _grey(fig, rounds, names, gone, FAINT, "excluded or suspended")
    _grey(fig, rounds, names, np.isnan(shown) & ~np.isnan(scores), BAND, "no limit in this round")
    score = "highest score" if pooled else "score"
    fig.add_heatmap(
        x=rounds, y=names, z=shown.astype(np.float32), customdata=cells, hoverongaps=False, coloraxis="coloraxis",
        hovertemplate=f"client %{{y}}, round %{{x}}<br>{score} %{{customdata[0]:.4g}}, "
        "limit %{customdata[1]:.4g}<extra></extra>",
    )  # fmt: skip
    fig.add_scatter(
        x=[rounds[i // step[1]] for _, i in mine.values()], y=[names[j // step[0]] for j, _ in mine.values()],
        mode="markers", name="excluded by this watch", showlegend=bool(mine), hoverinfo="text",
        marker={"symbol": "x", "size": 9, "color": VERMILION, "line": {"color": "white", "width": 1}},
        text=[_why(series, j, i) for j, i in mine.values()],
    )  # fmt: skip
    fig.update_xaxes(title_text="round", type="category", showgrid=False, nticks=6, tickangle=0)
    fig.update_yaxes(type="category", showgrid=False, autorange="reversed")
    return fig.update_layout(coloraxis=bar, coloraxis_colorbar_thickness=14, showlegend=True)


def watch_of(series: Series, watch: str) -> WatchSeries:
    """A watch by its name."""
    if watch not in series.watches:
        raise ConfigError(f"this run has no watch {watch!r}; {nearest(watch, series.watches)}")
    return series.watches[watch]


def untold(series: Series, seen: WatchSeries) -> str:
    """Why a figure of a watch would show nothing; empty where it shows something."""
    if not series.clients or not len(series):
        return "no round has been recorded yet"
    known = seen.scores[np.isfinite(seen.scores)]
    same = known.size and np.ptp(known) == 0 and not seen.flagged.any()
    return f"every client scored {number(float(known[0]))} in every round" if same else ""


def exclusions(series: Series) -> list[tuple[str, int]]:
    """Clients with the round in which they were first excluded, earliest first."""
    return sorted(series.excluded_in.items(), key=lambda found: found[1])


def loudest(series: Series) -> list[str]:
    """The watches, those first that flagged most clients."""
    return sorted(series.watches, key=lambda name: -int(series.watches[name].flagged.any(axis=0).sum()))


def _subtitle(step: tuple[int, int], others: int) -> str:
    pooled = f"each cell is the highest of {step[0]} clients and {step[1]} rounds" if step != (1, 1) else ""
    by_others = f"{count(others, 'client')} excluded by other watches" if others else ""
    return "; ".join(part for part in (pooled, by_others) if part)


def _grey(
    fig: go.Figure, rounds: list[str], names: list[str], mask: NDArray[np.bool_], colour: str, words: str
) -> None:
    """Cells without a score to colour, and what they are in the legend."""
    if not mask.any():
        return
    fig.add_heatmap(x=rounds, y=names, z=np.where(mask, 1.0, np.nan).astype(np.float32), showscale=False,
                    colorscale=[[0, colour], [1, colour]], hoverongaps=False,
                    hovertemplate=f"client %{{y}}, round %{{x}}<br>{words}<extra></extra>")  # fmt: skip
    fig.add_scatter(x=[None], y=[None], mode="markers", name=words, hoverinfo="skip",
                    marker={"symbol": "square", "size": 12, "color": colour})  # fmt: skip


def _colours(seen: WatchSeries, scale: Scale, dark: bool) -> tuple[Grid, Mapping[str, Any]]:
    """What the colour of a cell stands for, and the bar beside the figure."""
    values = seen.scores
    if scale == "limit":
        near = nearness(seen)
        if np.isfinite(near).any():
            ends = {"tickvals": [BELOW, 0, 1, ABOVE], "ticktext": ["-1", "median", "limit", "2"]}
            return np.clip(near, BELOW, ABOVE), {"cmin": BELOW, "cmax": ABOVE, "colorbar": ends}
        scale = "robust z"  # of a watch that never had a limit
    if scale == "robust z":
        bar = {"colorbar": {"title": {"text": "robust z"}}}
        return robust_rows(values), {"cmin": 0, "cmax": FAR, **bar}
    one_way = {"colorscale": HEAT_DARK if dark else HEAT}  # also where scores have both signs
    positive = values[(values > 0) & np.isfinite(values)]
    if scale == "linear" or (scale == "log" and not positive.size):
        return values, {"colorbar": {"title": {"text": "score"}}, **one_way}
    if scale != "log":
        raise ConfigError(f"the scale is 'limit', 'linear', 'log' or 'robust z'; got {scale!r}")
    low = max(float(positive.min()), float(positive.max()) / 10**DECADES)
    with np.errstate(invalid="ignore"):
        logs = np.log10(np.where(values < low, low, values))
    ticks: dict[float, str] = {float(t): f"{10.0**t:g}" for t in np.arange(np.ceil(np.log10(low)), top(logs) + 1e-9)}
    if len(ticks) < 2:  # of less than two powers of ten the ends
        ticks |= {float(np.log10(x)): f"{x:.2g}" for x in (low, float(positive.max()))}
    shown = {"tickvals": list(ticks), "ticktext": list(ticks.values())}
    return logs, {"colorbar": {"title": {"text": "score"}, **shown}, **one_way}


def _why(series: Series, j: int, i: int) -> str:
    """An exclusion in words: the watches whose limit was exceeded."""
    over = [f"{plain(w.name)} {w.scores[i, j]:.4g}, limit {w.threshold[i]:.4g}" for w in series.watches.values()
            if w.flagged[i, j]]  # fmt: skip
    return "<br>".join([f"client {labels([series.clients[j]])[0]}: excluded in round {series.rounds[i]}", *over])
