"""Figures of a run: which clients were flagged when, which were excluded, and what became of the model."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from ..core.errors import ConfigError, nearest
from ..core.words import listed
from ..store.series import Grid, Series, accuracy_words
from ..store.story import Story
from .grids import POINTS, finite, line, quantiles, top
from .grids import to_limit as to_limit
from .heatmap import Scale, exclusions, loudest, untold, watch_of
from .heatmap import heatmap as heatmap
from .theme import ALARM_BAND, BAND, CYCLE, FAINT, GREY, VERMILION, empty, figure, labels, panels, plain, whole_rounds

LINES = 60  # clients drawn as lines of their own; of more, a band of quantiles
FIRST = 4  # of the gravest clients that are drawn in colour
DOTS = 60  # rounds up to which every value has a dot
MOMENTS = 40  # rounds of exclusion up to which each has a line through the panels


def draw(
    story: Story, watch: str | None = None, of: str | None = None, scale: Scale = "limit", dark: bool = False
) -> go.Figure:
    """What a notebook shows: the client ``of``, a watch's scores, or accuracy and loss where there are any.

    With none of these it is the watch that flagged most clients.
    """
    series = story.series
    if of is not None:
        return client(series, of, dark)
    if watch is None and (learned(series) or not series.watches):
        return learning(series, dark)
    return heatmap(series, watch or loudest(series)[0], scale, dark)


def learned(series: Series) -> bool:
    """Whether an accuracy or a loss was recorded."""
    return any("acc" in name.lower() or "loss" in name.lower() for name in series.metrics)


def learning(series: Series, dark: bool = False) -> go.Figure:
    """Accuracy and loss by round; dotted lines mark the rounds in which clients were excluded."""
    title = "Accuracy and loss"
    shares = {k: v for k, v in series.metrics.items() if "acc" in k.lower() or k == "attack_success"}
    losses = {k: v for k, v in series.metrics.items() if "loss" in k.lower()}
    if not len(series) or not (shares or losses):
        return empty(title, "this run has recorded no accuracy and no loss", dark)
    shown = [p for p in ((shares, "accuracy", ".1%"), (losses, "loss", ".4g")) if p[0]]
    fig = panels(title, dark, 240 + 170 * len(shown), series.rounds, *(1.0 for _ in shown))
    for row, (lines, name, form) in enumerate(shown, 1):
        for metric, values in lines.items():
            words = accuracy_words(series.metrics) if metric == "accuracy" else plain(metric.replace("_", " "))
            hover = f"round %{{x}}<br>{words} %{{y:{form}}}<extra></extra>"
            colour = CYCLE[len(fig.data) % len(CYCLE)]
            fig.add_scatter(**line(series.rounds, values), name=words, mode="lines", line={"color": colour, "width": 2},
                            hovertemplate=hover, row=row, col=1)  # fmt: skip
        fig.update_yaxes(title_text=name, tickformat=".0%" if form == ".1%" else None, row=row, col=1)
    _mark_moments(fig, series)
    return fig


def scores(story: Story, watch: str, clients: Sequence[str] = (), dark: bool = False) -> go.Figure:
    """Scores over rounds below and above the limit; ``clients`` are drawn in colour.

    Where none are given, they are those that are out of the model, were in doubt or were flagged, the gravest first.
    """
    series = story.series
    seen, title = watch_of(series, watch), f"{plain(watch)}: scores over rounds"
    if why := untold(series, seen):
        return empty(title, why, dark)
    chosen = [c for c in clients if c in series.clients][: len(CYCLE)] or list(story.standings)[:FIRST]
    names, place = labels(series.clients), {c: j for j, c in enumerate(series.clients)}
    rest = [j for c, j in place.items() if c not in chosen]
    fig = figure(title, dark, 420)
    _limit_band(fig, series.rounds, finite(seen.threshold), seen.scores)
    if len(rest) > LINES:
        _quantiles(fig, series.rounds, seen.scores[:, rest])
    elif rest:
        lines = {names[j]: line(series.rounds, seen.scores[:, j]) for j in rest}
        x, y = (np.concatenate([np.append(of[axis], np.nan) for of in lines.values()]) for axis in "xy")
        text = np.repeat([*lines], [len(of["x"]) + 1 for of in lines.values()])
        fig.add_scatter(x=x, y=y, text=text, mode="lines", name="other clients", line={"color": FAINT, "width": 1},
                        hovertemplate="client %{text}, round %{x}<br>score %{y:.4g}<extra></extra>")  # fmt: skip
    for k, client in enumerate(chosen):
        hover = f"client {names[place[client]]}, round %{{x}}<br>score %{{y:.4g}}<extra></extra>"
        fig.add_scatter(**line(series.rounds, seen.scores[:, place[client]]), mode=_dots(series), hovertemplate=hover,
                        name=f"client {names[place[client]]}", line={"color": CYCLE[k], "width": 2.5},
                        marker={"size": 5})  # fmt: skip
    return fig.update_xaxes(whole_rounds(series.rounds), title_text="round").update_yaxes(title_text="score")


def client(series: Series, client: str, dark: bool = False) -> go.Figure:
    """One client: every watch's score, 0 at the median client and 1 at the limit, and its weight in the model."""
    if client not in series.clients:
        raise ConfigError(f"no client {client!r} in this run; {nearest(client, series.clients)}")
    j = series.clients.index(client)
    fig = panels(f"Client {labels(series.clients)[j]}", dark, 520, series.rounds, 0.65, 0.35)
    near = {name: to_limit(seen)[:, j] for name, seen in series.watches.items()}
    gravest = sorted(near, key=lambda name: -top(near[name]))[: len(CYCLE)]
    for name, seen in series.watches.items():
        known = np.stack([seen.scores[:, j], finite(seen.threshold)], axis=-1)
        colour = CYCLE[gravest.index(name)] if name in gravest else FAINT
        fig.add_scatter(
            **line(series.rounds, near[name], customdata=known),
            name=plain(name), mode=_dots(series), marker={"size": 5}, line={"color": colour, "width": 2},
            row=1, col=1,
            hovertemplate=f"round %{{x}}<br>{plain(name)}: score %{{customdata[0]:.4g}}, "
            "limit %{customdata[1]:.4g}<extra></extra>",
        )  # fmt: skip
    if series.watches:
        fig.add_hline(y=1, line={"color": VERMILION, "dash": "dash", "width": 1.5}, row=1, col=1)
        fig.add_hrect(y0=1, y1=1e6, fillcolor=ALARM_BAND, line_width=0, layer="below", row=1, col=1)
        highest = max(map(top, near.values()))
        fig.update_yaxes(range=[-0.5, max(1.5, 1.1 * highest)], row=1, col=1)
    fig.add_scatter(
        **line(series.rounds, series.weights[:, j]), name="weight", mode="lines", row=2, col=1,
        line={"color": GREY, "width": 2, "shape": "hv"},
        hovertemplate="round %{x}<br>weight in the model %{y:.3g}<extra></extra>",
    )  # fmt: skip
    if refused := [(t, reason) for t, c, reason in series.rejected if c == client][-POINTS:]:
        fig.add_scatter(
            x=[t for t, _ in refused], y=[0] * len(refused), mode="markers", name="rejected reply", row=2, col=1,
            marker={"symbol": "x", "size": 10, "color": VERMILION}, hoverinfo="text",
            text=[f"round {t}: reply rejected<br>{plain(str(reason))}" for t, reason in refused],
        )  # fmt: skip
    fig.update_yaxes(title_text="0 = median client<br>1 = limit", row=1, col=1)
    return fig.update_yaxes(title_text="weight", rangemode="tozero", row=2, col=1)


def compare(first: Series, second: Series, names: tuple[str, str], dark: bool = False) -> go.Figure:
    """Two runs: the accuracy of both, and how many clients were left out of each round."""
    fig = panels("Two runs", dark, 520, np.union1d(first.rounds, second.rounds), 0.6, 0.4)
    most = 0
    for series, name, colour in zip((first, second), names, CYCLE, strict=False):
        look = {"color": colour, "width": 2}
        shown = next((v for k, v in series.metrics.items() if "acc" in k.lower()), None)
        if shown is not None:
            fig.add_scatter(**line(series.rounds, shown), name=plain(name), legendgroup=name, line=look, mode="lines",
                            row=1, col=1, hovertemplate="round %{x}<br>accuracy %{y:.1%}")  # fmt: skip
        out = ((series.weights == 0) | series.excluded).sum(axis=1)
        most = max(most, int(out.max(initial=0)))
        fig.add_scatter(**line(series.rounds, out), name=plain(name), legendgroup=name, showlegend=shown is None, row=2,
                        col=1, line={**look, "shape": "hv"}, mode="lines",
                        hovertemplate="round %{x}<br>%{y} left out")  # fmt: skip
    fig.update_yaxes(title_text="accuracy", tickformat=".0%", row=1, col=1)
    whole = {"rangemode": "tozero", "tickformat": "d", "dtick": max(1, -(-most // 5))}
    return fig.update_yaxes(title_text="clients left out", row=2, col=1, **whole)


def _dots(series: Series) -> str:
    return "lines+markers" if len(series) <= DOTS else "lines"


def _mark_moments(fig: go.Figure, series: Series) -> None:
    """Dotted lines through all panels, with who was excluded on hover."""
    moments: dict[int, list[str]] = {}
    for client, t in exclusions(series):
        moments.setdefault(t, []).extend(labels([client]))
    if not moments:
        return
    if len(moments) <= MOMENTS:
        stroke = {"color": VERMILION, "dash": "dot", "width": 1.5}
        look = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": stroke}
        fig.update_layout(shapes=[{**look, "x0": t, "x1": t} for t in moments])  # add_vline is slow for many
    first = fig.data[0]
    at = np.searchsorted(first.x, list(moments))
    fig.add_scatter(
        x=list(moments), y=first.y[at], mode="markers", name="exclusion", row=1, col=1,
        marker={"symbol": "x", "size": 10, "color": VERMILION}, hoverinfo="text",
        text=[f"round {t}: excluded {listed(who)}" for t, who in moments.items()],
    )  # fmt: skip


def _limit_band(fig: go.Figure, rounds: NDArray[np.int64], limit: NDArray[np.float64], values: Grid) -> None:
    """The limit as a dashed line, and what lies above it in a faint colour."""
    if not np.isfinite(limit).any():
        return
    highest = 1.05 * max(top(limit), top(values))
    fig.add_scatter(**line(rounds, np.where(np.isnan(limit), np.nan, highest)), mode="lines", line={"width": 0},
                    hoverinfo="skip", showlegend=False)  # fmt: skip
    fig.add_scatter(**line(rounds, limit), mode="lines", name="limit", fill="tonexty", fillcolor=ALARM_BAND,
                    line={"color": VERMILION, "dash": "dash", "width": 1.5},
                    hovertemplate="round %{x}<br>limit %{y:.4g}<extra></extra>")  # fmt: skip


def _quantiles(fig: go.Figure, rounds: NDArray[np.int64], values: Grid) -> None:
    """Many clients as the band of their 5 % and 95 % quantiles, with their median and their highest."""
    low, middle, high, highest = quantiles(values, 0.05, 0.5, 0.95, 1.0)
    for y, style in ((low, {}), (high, {"fill": "tonexty", "fillcolor": BAND, "name": "90 % of the other clients"})):
        fig.add_scatter(**line(rounds, y), mode="lines", line={"width": 0}, hoverinfo="skip", showlegend=bool(style),
                        **style)  # fmt: skip
    for y, name, dash in ((middle, "their median", "solid"), (highest, "their highest", "dot")):
        fig.add_scatter(**line(rounds, y), mode="lines", name=name, line={"color": GREY, "width": 1.5, "dash": dash},
                        hovertemplate=f"round %{{x}}<br>{name} %{{y:.4g}}<extra></extra>")  # fmt: skip
