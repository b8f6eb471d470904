"""Pictures of the studies, as SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.errors import MissingExtra
from .study import mean_interval

Line = Mapping[Any, Sequence[float]]
"""What was measured at each place on the horizontal axis, once per seed; a place is a number or a word."""

Panels = Mapping[str, Mapping[str, Line]]
"""Lines by name, in panels by title."""

FAINT, STRONG = "#9aa5b1", "#d55e00"
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#000000")  # with STRONG: Okabe and Ito (2008)
STYLES, MARKERS = ("-", "--", ":"), "os^Dv*"
MANY = 12  # places from which on an interval is a band: bars would hide the line
APART = 0.11  # between the lines over a word, so that their intervals do not hide each other


def drawing() -> Any:
    """Matplotlib without a display."""
    if find_spec("matplotlib") is None:
        raise MissingExtra(
            "pictures need matplotlib, which is not installed; install it with: pip install 'fedwarden[figures]'"
        )
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "fedwarden"})  # small, and the same every time
    return import_module("matplotlib.pyplot")


def curves(
    path: Path,
    panels: Panels,
    title: str,
    x: str,
    y: str,
    strong: Sequence[str] = (),
    share: bool = True,
    columns: int | None = None,
) -> None:
    """One panel per entry, one line with intervals per name; the names in ``strong`` stand out.

    ``share`` gives all panels one vertical axis; ``columns`` breaks them into rows.
    """
    plt = drawing()
    wide = columns or len(panels)
    high = -(-len(panels) // wide)
    size = (5.2 * wide, 4.4) if high == 1 else (4.4 * wide, 2.9 * high)
    figure, axes = plt.subplots(high, wide, figsize=size, sharey=share, squeeze=False)
    names, legend = list(dict.fromkeys(label for lines in panels.values() for label in lines)), {}
    for place, (axis, (name, lines)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        for label, line in lines.items():
            index = names.index(label)  # a name looks the same in all panels
            legend[label] = _draw(axis, line, look(index, label in strong), label, APART * (index - len(names) / 2))
        axis.set_title(name, fontsize=10)
        axis.grid(color=FAINT, alpha=0.25)
        if place >= len(panels) - wide:
            axis.set_xlabel(x)
        if place % wide == 0:
            axis.set_ylabel(y)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    figure.legend(
        [legend[name] for name in names], names, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=9
    )
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def look(index: int, loud: bool) -> dict[str, Any]:
    """How the line of a name is drawn: loud, or in a colour, dashes and marker that no other of eighteen has.

    >>> len({tuple(look(i, False).values()) for i in range(18)})
    18
    """
    colour = STRONG if loud else COLOURS[index % len(COLOURS)]
    style = "-" if loud else STYLES[index // len(COLOURS) % len(STYLES)]
    return {
        "color": colour, "linestyle": style, "marker": MARKERS[index % len(MARKERS)], "markersize": 4,
        "linewidth": 2.2 if loud else 1.2, "zorder": 3 if loud else 2,
    }  # fmt: skip


def _draw(axis: Any, line: Line, looks: Mapping[str, Any], label: str, aside: float) -> Any:
    """Draw one line with its intervals, as bars or as a band; return what stands for it in the legend."""
    words = any(isinstance(place, str) for place in line)
    known = list(line) if words else sorted(line)
    places = [i + aside for i in range(len(known))] if words else known
    middle, half = zip(*(mean_interval(line[place]) for place in known), strict=True)
    if words:
        axis.set_xticks(range(len(known)), known, rotation=45 if len(known) > 6 else 0, fontsize=8)
    if len(known) >= MANY and not words:
        low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1, 1))
        axis.fill_between(places, low, high, color=looks["color"], alpha=0.2, linewidth=0)
        return axis.plot(places, middle, label=label, **{**looks, "marker": ""})[0]
    if any(half):
        return axis.errorbar(places, middle, half, capsize=2, label=label, **looks)
    return axis.plot(places, middle, label=label, **looks)[0]
