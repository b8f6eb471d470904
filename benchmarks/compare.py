"""Two runs of the benchmarks beside each other, so that a slowdown is seen.

    FEDWARDEN_BENCH=before.jsonl make bench
    FEDWARDEN_BENCH=after.jsonl make bench
    python benchmarks/compare.py before.jsonl after.jsonl

Ratios are compared, since times do not travel from machine to machine; ``--times`` compares those too, which means
something on one quiet machine. Ends with 1 where a figure is worse by more than ``--tolerance``.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

RATIO = re.compile(r"ratio|times|relative", re.I)
TIME = re.compile(r"\b(ms|s|seconds)\b|per client", re.I)
MORE_IS_BETTER = re.compile(r"times ours|faster", re.I)
OTHER = re.compile(r"smallest|\bMB\b|GiB|bytes|alone|\bbar\b", re.I)


class Figure(NamedTuple):
    """A figure of a table: of which row and column, and what it is."""

    table: str
    row: str
    column: str
    value: float


def number(cell: str) -> float | None:
    """The first number in a cell.

    >>> number("1.10 (1.00)"), number("-"), number("11,200")
    (1.1, None, 11200.0)
    """
    found = re.match(r"\s*-?[\d,]*\.?\d+", cell)
    return float(found[0].replace(",", "")) if found else None


def figures(path: Path, times: bool) -> Iterator[Figure]:
    """The figures of a file that are worth comparing; columns that measure nothing name the row."""
    for line in path.read_text(encoding="utf-8").splitlines():
        table = json.loads(line)
        measured = {h for h in table["header"] if RATIO.search(h) or TIME.search(h)}
        for cells in table["rows"]:
            row = dict(zip(table["header"], cells, strict=True))
            name = ", ".join(cell for head, cell in row.items() if head not in measured and not OTHER.search(head))
            for head, cell in row.items():
                wanted = RATIO.search(head) or (times and TIME.search(head))
                if wanted and not OTHER.search(head) and (value := number(cell)) is not None:
                    yield Figure(table["title"], name, head, value)


def worse(column: str, before: float, after: float) -> float:
    """By what part a figure is worse than before; below 0 where it is better.

    >>> round(worse("median ratio", 2.0, 2.2), 3), round(worse("Flower, times ours", 10.0, 8.0), 3)
    (0.1, 0.25)
    """
    old, new = (after, before) if MORE_IS_BETTER.search(column) else (before, after)
    return new / old - 1 if old else 0.0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=0.15, metavar="PART", help="default: 0.15")
    parser.add_argument("--times", action="store_true", help="compare times too")
    args = parser.parse_args()
    old = {figure[:3]: figure.value for figure in figures(args.before, args.times)}
    new = {figure[:3]: figure.value for figure in figures(args.after, args.times)}
    both = [key for key in new if key in old]
    if not both:
        sys.exit("the two files have no figure in common")
    bad = 0
    print("| table | row | figure | before | after | change |\n| --- | --- | --- | --- | --- | --- |")
    for key in both:
        change = worse(key[2], old[key], new[key])
        bad += change > args.tolerance
        mark = "**worse**" if change > args.tolerance else "better" if change < -args.tolerance else ""
        print("|", " | ".join(key), f"| {old[key]:g} | {new[key]:g} | {change:+.0%} {mark} |")
    print(f"\n{len(both)} figures compared, {bad} worse by more than {args.tolerance:.0%}.", end=" ")
    print(f"Only before: {len(old) - len(both)}; only after: {len(new) - len(both)}.")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
