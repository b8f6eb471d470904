"""Pictures of the studies, as SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import median
from textwrap import fill
from typing import Any

from .tables import mean_interval

Line = Mapping[Any, Sequence[float]]
"""What was measured at each place on the horizontal axis, once per seed; a place is a number or a word."""

Panels = Mapping[str, Mapping[str, Line]]
"""Lines by name, in panels by title."""

FAINT, GREY, STRONG = "#9aa5b1", "#56606b", "#d55e00"
COLOURS = ("#000000", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # with STRONG: Okabe and Ito (2008)
STYLES, MARKERS = ("-", "--", ":"), "os^Dv*"
WIDTH, LETTER = 3.4, 0.055  # inches: a column of a paper, and a letter of 7 points
LONG = 28  # letters of a name or title on one line
MANY = 12  # places from which on spreads are a band: bars would hide the line
APART = 0.1  # between lines over the same word: their spreads would hide each other


def drawing() -> Any:
    """Matplotlib without a display."""
    matplotlib = import_module("matplotlib")
    matplotlib.use("svg")
    fonts = {"svg.fonttype": "none", "pdf.fonttype": 42}  # text, not its outlines; journals refuse a PDF's type 3
    matplotlib.rcParams.update({**fonts, "svg.hashsalt": "fedwarden"})  # small, and the same every time
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
    log: bool = False,
    upright: Mapping[str, float] | None = None,
) -> None:
    """One panel per entry, one line per name with its spread over seeds; the names in ``strong`` stand out.

    ``share`` gives all panels one vertical axis, ``columns`` breaks them into rows, and ``log`` makes vertical axes
    logarithmic. ``upright`` are vertical lines in all panels, by name.
    """
    plt = drawing()
    wide = columns or len(panels)
    high = -(-len(panels) // wide)
    size = (5.2 * wide, 4.4) if high == 1 else (3.5 * wide, 2.5 * high)
    figure, axes = plt.subplots(high, wide, figsize=size, sharey=share, squeeze=False, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08)
    names = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    looks = {label: look(i, label in strong) for i, label in enumerate(names)}  # of a name the same in all panels
    legend: dict[str, Any] = {}
    for place, (axis, (name, lines)) in enumerate(zip(axes.flat, panels.items(), strict=False)):
        legend |= _panel(axis, lines, looks, log)
        axis.set_title(name, fontsize=10)
        axis.set_xlabel(x if place >= len(panels) - wide else "")
        axis.set_ylabel(y if place % wide == 0 else "")
        for label, at in (upright or {}).items():
            legend[label] = axis.axvline(at, color=FAINT, linestyle=STYLES[1], label=label)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    names += list(upright or ())
    figure.suptitle(title)
    figure.legend([legend[name] for name in names], names, loc="outside lower center", ncols=2 * wide, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def dots(stem: Path, panels: Mapping[str, tuple[str, Line]]) -> list[Path]:
    """A figure as wide as a column of a paper, as SVG and PDF: a panel per title, with its axis, and a row per name.

    Every seed is a ring below their mean with its 95 % interval; the first name stands out by colour and form. Panels
    of the same axis share its range, and percentages end at 0 and 100. The widest title says how many panels fit.
    """
    plt = drawing()
    names = list(next(iter(panels.values()))[1])
    room = WIDTH - LETTER * min(LONG, max(map(len, names))) - 0.15
    wide = max(1, min(len(panels), 3, int(room / max(0.75, LETTER * min(LONG, max(map(len, panels))) + 0.1))))
    high = -(-len(panels) // wide)
    with plt.rc_context({"font.size": 7, "axes.linewidth": 0.6, "xtick.major.width": 0.6}):
        labels = [fill(name, LONG) for name in names]
        tall = 0.08 + 0.11 * max(label.count("\n") + 1 for label in labels)
        size = (WIDTH, high * (0.55 + tall * len(names)))
        figure, axes = plt.subplots(high, wide, figsize=size, sharey=True, squeeze=False, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.05, h_pad=0.03)
        for place, (axis, (title, (measure, lines))) in enumerate(zip(axes.flat, panels.items(), strict=False)):
            alike = [some.values() for label, some in panels.values() if label == measure]
            every = [x for some in alike for values in some for x in _drawn(values, measure)]
            edge = 0.06 * (max(every) - min(every)) or 1.0
            axis.set_xlim(min(every) - edge, max(every) + edge)
            for row, name in enumerate(names):
                low, middle, top, *seeds = _drawn(lines[name], measure)
                colour, form = (STRONG, "D") if row == 0 else (COLOURS[1], "o")
                axis.plot(seeds, [row + 0.27] * len(seeds), "o", mfc="none", mec=GREY, ms=2, mew=0.5)
                axis.plot([low, top], [row, row], color=colour, linewidth=1.1)
                axis.plot(middle, row, form, color=colour, markersize=3.6)
            axis.set_title(fill(title, LONG), fontsize=7)
            axis.set_xlabel(measure)
            axis.set_yticks(range(len(names)), labels)
            axis.tick_params(axis="y", length=0, labelleft=place % wide == 0)
            axis.grid(axis="x", color=FAINT, alpha=0.3, linewidth=0.5)
            axis.locator_params(axis="x", nbins=3)
            axis.spines[["top", "right", "left"]].set_visible(False)
        axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
        for axis in axes.flat[len(panels) :]:
            axis.remove()
        paths = [stem.with_suffix(kind) for kind in (".svg", ".pdf")]
        for path, date in zip(paths, ("Date", "CreationDate"), strict=True):
            figure.savefig(path, metadata={date: None})
        plt.close(figure)
    return paths


def _drawn(values: Sequence[float], measure: str) -> list[float]:
    """The ends of the interval, with the mean between them, and the values."""
    low, middle, top = spread(values)
    return [*((max(low, 0.0), middle, min(top, 100.0)) if "%" in measure else (low, middle, top)), *values]


def look(index: int, loud: bool) -> dict[str, Any]:
    """How the line of a name is drawn: loud, or as no other of eighteen.

    >>> len({tuple(look(i, loud=False).values()) for i in range(18)})
    18
    """
    return {
        "color": STRONG if loud else COLOURS[index % len(COLOURS)],
        "linestyle": "-" if loud else STYLES[index // len(COLOURS) % len(STYLES)],
        "marker": MARKERS[index % len(MARKERS)], "markersize": 4,
        "linewidth": 2.2 if loud else 1.2, "zorder": 3 if loud else 2,
    }  # fmt: skip


def spread(values: Sequence[float], log: bool = False) -> tuple[float, float, float]:
    """Mean and 95 % interval; for a logarithmic axis, which has no place for values below zero, median and range.

    >>> spread([1.0, 2.0, 9.0], log=True), spread([2.0])
    ((1.0, 2.0, 9.0), (2.0, 2.0, 2.0))
    """
    if log:
        return min(values), median(values), max(values)
    mean, half = mean_interval(values)
    return mean - half, mean, mean + half


def _panel(axis: Any, lines: Mapping[str, Line], looks: Mapping[str, dict[str, Any]], log: bool) -> dict[str, Any]:
    """Draw the lines of one panel; return what stands for each in the legend."""
    places = list(dict.fromkeys(place for line in lines.values() for place in line))
    words = any(isinstance(place, str) for place in places)
    if words:
        slanted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if len(places) > 6 else {}
        axis.set_xticks(range(len(places)), places, fontsize=8, **slanted)
    elif all(isinstance(place, int) for place in places):
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis.set_yscale("log" if log else "linear")
    axis.grid(color=FAINT, alpha=0.25)
    legend = {}
    for i, (label, line) in enumerate(lines.items()):
        known = [place for place in places if place in line] if words else sorted(line)
        low, middle, high = zip(*(spread(line[place], log) for place in known), strict=True)
        aside = APART * (i - (len(lines) - 1) / 2) if low != high else 0.0
        at = [places.index(place) + aside for place in known] if words else known
        drawn = looks[label]
        if len(known) >= MANY and not words:
            axis.fill_between(at, low, high, color=drawn["color"], alpha=0.2, linewidth=0)
            drawn = drawn | {"marker": ""}
        elif low != high:
            axis.vlines(at, low, high, color=drawn["color"], linewidth=drawn["linewidth"], zorder=drawn["zorder"])
        (legend[label],) = axis.plot(at, middle, label=label, **drawn)
    return legend
