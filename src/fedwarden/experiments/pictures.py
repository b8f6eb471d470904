"""Pictures of the studies, as SVG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.errors import MissingExtra
from .study import mean_interval

Line = Mapping[float, Sequence[float]]
"""What was measured at each place on the horizontal axis, once per seed."""

FAINT, STRONG = "#9aa5b1", "#c0392b"


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
    panels: Mapping[str, Mapping[str, Line]],
    title: str,
    x: str,
    y: str,
    strong: Sequence[str] = (),
    share: bool = True,
) -> None:
    """One panel per entry, one line with intervals per name; the names in ``strong`` stand out.

    ``share`` gives all panels one vertical axis.
    """
    plt = drawing()
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 4.4), sharey=share, squeeze=False)
    colours = plt.get_cmap("tab20").colors
    names, legend = list(dict.fromkeys(label for lines in panels.values() for label in lines)), {}
    for axis, (name, lines) in zip(axes[0], panels.items(), strict=True):
        for label, line in lines.items():
            places = sorted(line)
            middle, half = zip(*(mean_interval(line[p]) for p in places), strict=True)
            loud = label in strong
            colour = STRONG if loud else colours[names.index(label) % len(colours)]  # of a name the same in all panels
            look = {
                "label": label, "color": colour, "linewidth": 2.4 if loud else 1.0, "zorder": 3 if loud else 2,
                "alpha": 1.0 if loud else 0.75,
            }  # fmt: skip
            if any(half):
                legend[label] = axis.errorbar(places, middle, half, capsize=2, **look)
            else:
                (legend[label],) = axis.plot(places, middle, marker=".", **look)
        axis.set(title=name, xlabel=x)
        axis.grid(color=FAINT, alpha=0.25)
    axes[0, 0].set_ylabel(y)
    figure.legend(
        [legend[name] for name in names], names, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8
    )
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)
