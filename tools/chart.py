"""The chart of the README, drawn from tables in docs/results into docs/images/results.svg.

python tools/chart.py
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "docs" / "results", ROOT / "docs" / "images" / "results.svg"
SHOWN = {  # the name in both tables, and the one in the chart
    "auto": "fedwarden, auto",
    "RFA": "RFA",
    "norm clipping": "norm clipping",
    "trimmed mean": "trimmed mean",
    "Multi-Krum": "Multi-Krum",
    "PID-MADE": "PID-MADE",
}
TOP, ROW, LABELS, LEFT, RIGHT = 62, 34, 130, 140, 520  # in pixels; the last two are where the panels begin
WIDTH = 300  # of a panel
HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 {height}" font-family="system-ui, sans-serif" '
    'font-size="13" role="img" aria-label="{title}">'
)
TITLE = "Accuracy of six defences under attack, and what honest clients that differ cost under each"


def rows(path: str) -> list[dict[str, str]]:
    with (RESULTS / path).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def under_attack() -> dict[str, tuple[float, float]]:
    """By defence: the accuracy in its worst cell of the grid, and the mean over the cells."""
    found = defaultdict(list)
    for row in rows("defences/fourth/digits.csv"):
        found[row["defence"]].append(float(row["accuracy"]))
    return {name: (min(values), fmean(values)) for name, values in found.items()}


def honest_cost() -> dict[str, float]:
    """By defence: the points of accuracy below FedAvg where nobody attacks and an honest client differs."""
    found = defaultdict(list)
    for row in rows("different/digits.csv"):
        found[row["defence"]].append(100 * (float(row["fedavg"]) - float(row["accuracy"])))
    return {name: fmean(values) for name, values in found.items()}


def drawn(attacked: Mapping[str, tuple[float, float]], cost: Mapping[str, float]) -> Iterator[str]:
    yield HEAD.format(height=TOP + ROW * len(SHOWN) + 12, title=TITLE)
    yield '<rect width="100%" height="100%" rx="8" fill="#f4f6f8"/>'
    yield text(LEFT, 24, "Under attack: accuracy, in %", weight="600")
    yield text(LEFT, 42, "bar: worst of 92 settings; line: mean of all", size=11)
    yield text(RIGHT, 24, "No attack, an honest client differs", weight="600")
    yield text(RIGHT, 42, "points of accuracy below FedAvg; less is better", size=11)
    for at, (name, label) in enumerate(SHOWN.items()):
        y, colour = TOP + ROW * at, "#3f51b5" if name == "auto" else "#9aa7b4"
        worst, mean = attacked[name]
        yield text(LABELS, y + 15, label, anchor="end", weight="600" if name == "auto" else "400")
        yield bar(LEFT, y, WIDTH * worst / 100, colour)
        yield f'<rect x="{LEFT + WIDTH * mean / 100:.1f}" y="{y - 3}" width="2.5" height="28" fill="#1d2733"/>'
        yield text(LEFT + WIDTH * worst / 100 + 6, y + 15, f"{worst:.1f}", size=12)
        yield bar(RIGHT, y, WIDTH * cost[name] / 10, colour)
        yield text(RIGHT + WIDTH * cost[name] / 10 + 6, y + 15, f"{cost[name]:.1f}", size=12)
    yield "</svg>"


def bar(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x}" y="{y}" width="{width:.1f}" height="22" rx="3" fill="{colour}"/>'


def text(x: float, y: float, words: str, anchor: str = "start", weight: str = "400", size: int = 13) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="#1d2733">'
        f"{words}</text>"
    )


if __name__ == "__main__":
    PICTURE.write_text("\n".join(drawn(under_attack(), honest_cost())) + "\n", encoding="utf-8")
