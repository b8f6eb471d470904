"""The rooms of the package and who imports whom, drawn from the code into docs/images/house.svg.

``python tools/house.py`` writes the picture; with ``--check`` it only says whether the picture is what the code is now.
Floors are the layers of the import contract in pyproject.toml. Nothing of the package is imported.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from house_drawing import draw

ROOT = Path(__file__).parents[1]
SOURCE, PICTURE = ROOT / "src" / "fedwarden", ROOT / "docs" / "images" / "house.svg"
Graph = dict[str, set[str]]


def rooms() -> dict[str, str]:
    """The sub-packages of fedwarden, each with the first sentence of its docstring."""
    found = {}
    for path in sorted(SOURCE.glob("*/__init__.py")):
        words = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        found[path.parent.name] = re.split(r"(?<=\.)\s", " ".join(words.replace("`", "").split()))[0]
    return found


def floors() -> list[list[str]]:
    """The layers of the import contract, from the top, with the rooms on each."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers")
    named = [[room for room in re.findall(r"\w+", layer) if room in rooms()] for layer in layers]
    return [floor for floor in named if floor]


def imports() -> Graph:
    """Which rooms each room imports; what only a type checker reads does not count."""
    graph: Graph = {room: set() for room in rooms()}
    for room in graph:
        for path in sorted((SOURCE / room).rglob("*.py")):
            package = ("fedwarden", *path.relative_to(SOURCE).parts[:-1])
            for name in _imported(ast.parse(path.read_text(encoding="utf-8")), package):
                parts = name.split(".")
                if parts[0] == "fedwarden" and parts[1] in graph:
                    graph[room].add(parts[1])
        graph[room].discard(room)
    return graph


def _imported(node: ast.AST, package: Sequence[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"{alias.name}." for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        start = package[: len(package) - node.level + 1] if node.level else ()
        yield from (".".join([*start, *filter(None, [node.module]), alias.name]) for alias in node.names)
    elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
        for child in ast.iter_child_nodes(node):
            yield from _imported(child, package)


def arrows(graph: Graph) -> list[tuple[str, str]]:
    """The imports that no chain of others implies.

    >>> arrows({"a": {"b", "c"}, "b": {"c"}, "c": set()})
    [('a', 'b'), ('b', 'c')]
    """

    def below(room: str) -> set[str]:
        return graph[room].union(*map(below, graph[room]))

    return [(a, b) for a in graph for b in sorted(graph[a]) if not any(b in below(c) for c in graph[a])]


def picture() -> str:
    """The house as SVG."""
    return draw(floors(), rooms(), arrows(imports()))


def main(arguments: Sequence[str]) -> int:
    """Write the picture, or check it."""
    if "--check" not in arguments:
        PICTURE.write_text(picture(), encoding="utf-8")
    elif not PICTURE.exists() or PICTURE.read_text(encoding="utf-8") != picture():
        print(f"{PICTURE.relative_to(ROOT)} is not what the code is now: python tools/house.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
