"""Draws a house of rooms: floors from top to bottom, a box a room, an arrow an import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from html import escape
from itertools import combinations, pairwise
from textwrap import wrap
from typing import NamedTuple

Words = Mapping[str, str]  # a sentence for every room
Arrows = Sequence[tuple[str, str]]
Storey = tuple[tuple[str, ...], int]  # its rooms from the left, and where it begins if that is one room

WIDTH, EDGE, BOX, GAP, STAIRS, LINE, ROOF = 1040, 20, 280, 12, 30, 15, 62
SLOTS = [EDGE + i * (WIDTH - 2 * EDGE - BOX) // 8 for i in range(9)]
STYLE = """
text { font: 12px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #333 }
.name { font-weight: 600; font-size: 14px; fill: #303f9f }
.paper { fill: #fff } .floor { fill: #eef0f8 } .room { fill: #fff; stroke: #b6bde0 }
.arrow { stroke: #7986cb; stroke-width: 1.3; fill: none; marker-end: url(#head) } #head path { fill: #7986cb }
@media (prefers-color-scheme: dark) {
  text { fill: #dcdfe8 } .name { fill: #b3bdff }
  .paper { fill: #1e2129 } .floor { fill: #272c39 } .room { fill: #343b4f; stroke: #5f6a94 }
  .arrow { stroke: #8c9ae8 } #head path { fill: #8c9ae8 }
}
"""


class Box(NamedTuple):
    """Where a room is drawn."""

    x: int
    y: int
    w: int
    h: int


def build(house: Sequence[Storey], words: Words) -> dict[str, Box]:
    """A box for every room; the lowest floor is as wide as the house."""
    boxes, y = {}, ROOF + GAP
    for names, slot in house:
        wide = (WIDTH - 2 * EDGE + GAP) // len(names) - GAP
        if len(names) == 1 and names != house[-1][0]:
            boxes[names[0]] = Box(slot, y, BOX, 28 + LINE * len(told(words[names[0]], BOX)))
        else:
            height = 28 + LINE * max(len(told(words[name], wide)) for name in names)
            boxes.update((name, Box(EDGE + i * (wide + GAP), y, wide, height)) for i, name in enumerate(names))
        y += boxes[names[0]].h + STAIRS
    return boxes


@cache
def told(sentence: str, wide: int) -> list[str]:
    """A sentence in lines that fit into a box."""
    return wrap(sentence, (wide - 16) * 10 // 67, break_on_hyphens=False)


def route(a: Box, b: Box, boxes: dict[str, Box]) -> list[tuple[float, float]]:
    """The way of an arrow: straight down where that is possible, and around the rooms between."""
    low, high = max(a.x, b.x) + 12, min(a.x + a.w, b.x + b.w) - 12
    if low <= high:
        start = end = (low + high) / 2
    else:
        start, end = (a.x + a.w - 12, b.x + 12) if a.x < b.x else (a.x + 12, b.x + b.w - 12)
    path = [(start, float(a.y + a.h))]
    for box in boxes.values():
        x, y = path[-1]
        if y < box.y < b.y:
            here = [x + (end - x) * (level - y) / (b.y - y) for level in (box.y, box.y + box.h)]
            if min(here) < box.x + box.w + 4 and max(here) > box.x - 4:
                x = min(box.x - GAP / 2, box.x + box.w + GAP / 2, key=lambda side: abs(side - sum(here) / 2))
                path += [(x, box.y - 6.0), (x, box.y + box.h + 6.0)]
    return [*path, (end, b.y - 1.0)]


def arrange(floors: Sequence[Sequence[str]], words: Words, arrows: Arrows) -> dict[str, Box]:
    """The easiest picture to read that is found by moving one room at a time, or swapping two of a floor."""

    def unrest(house: Sequence[Storey]) -> float:
        boxes = build(house, words)
        paths = [route(boxes[a], boxes[b], boxes) for a, b in arrows]
        points = [point for path in paths for point in path]
        lean = sum((p[0] - q[0]) ** 2 / (q[1] - p[1]) for path in paths for p, q in pairwise(path))
        return lean + 120 * len(points) + 200 * (len(points) - len(set(points)))

    found = []
    for shift in (2, 7):  # alternating sides, so that arrows have room to pass
        house: list[Storey] = [(tuple(floor), SLOTS[(4 + i * shift) % 9]) for i, floor in enumerate(floors)]
        while (best := min([house, *changed(house)], key=unrest)) is not house:
            house = best
        found.append(house)
    return build(min(found, key=unrest), words)


def changed(house: list[Storey]) -> Iterator[list[Storey]]:
    """Every house that differs on one floor: in the slot of its only room, or in the places of two of its rooms."""
    for i, (names, slot) in enumerate(house):
        swaps = [tuple({a: b, b: a}.get(n, n) for n in names) for a, b in combinations(names, 2)]
        for other in [(s, slot) for s in swaps] or [(names, s) for s in SLOTS]:
            yield [*house[:i], other, *house[i + 1 :]]


def draw(floors: Sequence[Sequence[str]], words: Words, arrows: Arrows) -> str:
    """The house as SVG."""
    boxes = arrange(floors, words, arrows)
    height = max(box.y + box.h for box in boxes.values()) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>The rooms of fedwarden and what they import</title><style>{STYLE}</style>",
        '<marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0.5 8 4 0 7.5z"/></marker>',
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
        f'<path class="floor" d="M{EDGE / 2:g} {ROOF - 4}H{WIDTH - EDGE / 2:g}L{WIDTH / 2:g} 8z"/>',
        f'<text class="name" x="{WIDTH / 2:g}" y="{ROOF - 18}" text-anchor="middle">fedwarden</text>',
    ]
    for y, h in dict.fromkeys((box.y, box.h) for box in boxes.values()):
        out.append(
            f'<rect class="floor" x="{EDGE / 2:g}" y="{y - 6}" width="{WIDTH - EDGE}" height="{h + 12}" rx="4"/>'
        )
    for a, b in arrows:
        points = " ".join(f"{x:.0f},{y:.0f}" for x, y in route(boxes[a], boxes[b], boxes))
        out.append(f'<polyline class="arrow" points="{points}"/>')
    for room, (x, y, w, h) in boxes.items():
        out.append(f'<rect class="room" x="{x}" y="{y}" width="{w}" height="{h}" rx="5"/>')
        out.append(f'<text class="name" x="{x + 8}" y="{y + 18}">{room}</text>')
        for i, line in enumerate(told(words[room], w)):
            out.append(f'<text x="{x + 8}" y="{y + 35 + LINE * i}">{escape(line)}</text>')
    note = "An arrow is an import; one that a chain of others implies is left out. Imports only go down."
    out.append(f'<text x="{EDGE / 2:g}" y="{height - 12}">{note}</text></svg>')
    return "\n".join(out) + "\n"
