"""How every figure looks: colours that the colour-blind can tell apart, a light and a dark template, plain labels.

Light and dark differ in the template alone, so that a page changes from one to the other by replacing it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray
from plotly.offline import get_plotlyjs as get_plotlyjs
from plotly.subplots import make_subplots

from ..core.words import printable

ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (  # Okabe and Ito (2008), without black
    "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#8A8F98"  # legible on white and on black
FAINT = "rgba(138, 143, 152, 0.35)"
BAND = "rgba(138, 143, 152, 0.18)"
ALARM_BAND = "rgba(213, 94, 0, 0.12)"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION)
CONFIG = {  # of Plotly: nothing leaves the page
    "displaylogo": False, "responsive": True, "showSendToCloud": False, "plotlyServerURL": "",
    "modeBarButtonsToRemove": ["sendChartToCloud", "select2d", "lasso2d", "autoScale2d"],
}  # fmt: skip
LONGEST = 28  # characters of a client's name

HEAT = ((0.0, "#F3F0E6"), (0.5, SKY), (1.0, "#00304D"))
HEAT_DARK = ((0.0, "#1B222C"), (0.5, BLUE), (1.0, "#FFE9A8"))
MEDIAN, LIMIT = 1 / 3, 2 / 3  # where they lie on a scale from -1 to 2, of which they are 0 and 1
SIDES = ((0.0, "#7FB8DA"), (MEDIAN, "#ECE7DA"), (LIMIT, "#F2C496"), (LIMIT, VERMILION), (1.0, "#4D1A00"))
SIDES_DARK = ((0.0, "#2E79AC"), (MEDIAN, "#3A434F"), (LIMIT, "#6B4626"), (LIMIT, "#F07A2B"), (1.0, "#FFE9A8"))


@cache
def template(dark: bool = False) -> go.layout.Template:
    """The look of all figures."""
    ink, line, paper = ("#E6E8EB", "#3A424D", "#14181F") if dark else ("#1D2329", "#D8DCE1", "#FFFFFF")
    axis = {
        "gridcolor": line, "linecolor": GREY, "zerolinecolor": line, "ticks": "outside", "tickcolor": GREY,
        "automargin": True, "title": {"standoff": 8},
    }  # fmt: skip
    scale, sides = ([list(stop) for stop in s] for s in ((HEAT_DARK, SIDES_DARK) if dark else (HEAT, SIDES)))
    return go.layout.Template(
        layout={
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": ink},
            "title": {
                "x": 0, "xref": "container", "y": 1, "yanchor": "top", "pad": {"t": 16, "l": 12}, "font": {"size": 15},
                "subtitle": {"font": {"size": 12, "color": GREY}},
            },
            "paper_bgcolor": paper,
            "plot_bgcolor": paper,
            "colorway": list(CYCLE),
            "colorscale": {"sequential": scale, "sequentialminus": scale, "diverging": sides},
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {"align": "left", "bgcolor": paper, "bordercolor": GREY, "font": {"color": ink}},
            "legend": {
                "orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0, "traceorder": "normal",
            },
            "margin": {"l": 64, "r": 24, "t": 64, "b": 48},
        }
    )  # fmt: skip


def figure(title: str, dark: bool, height: int = 380, subtitle: str = "", **layout: Any) -> go.Figure:
    """An empty figure in the house's look."""
    head = {"text": title, "subtitle": {"text": subtitle}}
    return go.Figure(layout={"template": template(dark), "title": head, "height": height, **layout})


def whole_rounds(rounds: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
    """The ticks of an axis of rounds, which have no halves: at most ten of them, by steps of 1, 2, 5, 10, 20, ...

    >>> [whole_rounds(range(1, last + 1))["dtick"] for last in (3, 20, 100)]
    [1, 2, 10]
    """
    first, last = (int(min(rounds)), int(max(rounds))) if len(rounds) else (1, 1)
    steps = (step * 10**power for power in range(19) for step in (1, 2, 5))
    step = next(step for step in steps if last - first <= 10 * step)
    return {"tick0": 0, "dtick": step, "autorangeoptions": {"minallowed": first - 0.5, "maxallowed": last + 0.5}}


def panels(title: str, dark: bool, height: int, rounds: Sequence[int] | NDArray[np.int64], *shares: float) -> go.Figure:
    """Panels one above the other with one axis of rounds, each with its share of the height."""
    fig = make_subplots(len(shares), 1, shared_xaxes=True, vertical_spacing=0.09, row_heights=list(shares))
    fig.update_xaxes(whole_rounds(rounds))
    fig.update_xaxes(title_text="round", row=len(shares), col=1)
    return fig.update_layout(template=template(dark), title={"text": title}, height=height)


def empty(title: str, why: str, dark: bool = False) -> go.Figure:
    """A figure of nothing that says why."""
    hidden = {"visible": False}
    note = {"text": why, "showarrow": False, "xref": "paper", "yref": "paper", "x": 0.5, "y": 0.5}
    return figure(title, dark, 220, xaxis=hidden, yaxis=hidden, annotations=[note])


def plain(text: str) -> str:
    """Text that Plotly shows as it is: names come from clients, and Plotly reads tags and fills in what is in %{}.

    >>> plain("<b>eve</b> & %{x}")
    '&lt;b&gt;eve&lt;/b&gt; &amp; &#37;{x}'
    """
    return printable(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("%{", "&#37;{")


def labels(clients: Sequence[str]) -> list[str]:
    """A label for each client: plain, short, and no two the same.

    >>> labels(["a", "x" * 40, "x" * 40 + "y"])
    ['a', 'xxxxxxxxxxxxxxxxxxxxxxxxxxx…', 'xxxxxxxxxxxxxxxxxxxxxxxxxxx… (2)']
    """
    found: list[str] = []
    times: dict[str, int] = {}
    for client in clients:
        short = plain(client if len(client) <= LONGEST else f"{client[: LONGEST - 1]}…")
        times[short] = times.get(short, 0) + 1
        found.append(short if times[short] == 1 else f"{short} ({times[short]})")
    return found
