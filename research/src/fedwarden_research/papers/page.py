"""The files of a paper: every table as CSV, pictures, and a page in Markdown that is made from the CSV files alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..studies.tables import Results, Sheet, read_csv, write_csv
from .item import Item, Paper

CONTENTS = "contents.csv"
HEADER = ("item", "kind", "file", "title")
LONG = 30  # rows from which on a table is a link and not shown


class Entry(NamedTuple):
    """A line of the list of a paper's files; of the kind "seeds" the title is their number."""

    item: str
    kind: str
    file: str
    title: str


def write(paper: Paper, item: Item, found: Results, out: Path) -> list[Path]:
    """The tables and pictures of an item in a folder named after its paper; its entries in the list of files."""
    folder = out / paper.name
    seeds = len({r["cell"].get("seed") for r in found})
    entries = [Entry(item.name, "seeds", "", str(seeds))]
    for sheet in item.sheets(found):
        path = write_csv(folder / f"{item.name}-{sheet.name}.csv", sheet.grid)
        entries.append(Entry(item.name, "table", path.name, sheet.title))
    for path in item.pictures(found, folder, item.name):
        entries.append(Entry(item.name, "picture", path.name, item.title))
    others = [e for e in contents(folder) if e.item != item.name]
    order = [i.name for i in paper.items]
    kept = sorted((e for e in [*others, *entries] if e.item in order), key=lambda e: order.index(e.item))
    write_csv(folder / CONTENTS, (HEADER, kept))
    return [folder / e.file for e in entries if e.file]


def contents(folder: Path) -> list[Entry]:
    """The list of a paper's files."""
    path = folder / CONTENTS
    return [Entry(*row) for row in read_csv(path)[1]] if path.is_file() else []


def write_page(paper: Paper, out: Path) -> Path:
    """Write the page about a paper from the files in its folder."""
    path = out / f"{paper.name}.md"
    path.write_text(page(paper, out / paper.name), encoding="utf-8")
    return path


def page(paper: Paper, folder: Path) -> str:
    """A page with every item of a paper: what it says, what was found, and whether that agrees."""
    entries = contents(folder)
    parts = [f"# {paper.title}", *([paper.words] if paper.words else []), f"The paper: <{paper.source}>."]
    parts += [_section(paper, item, [e for e in entries if e.item == item.name], folder) for item in paper.items]
    return "\n\n".join(parts) + "\n"


def _section(paper: Paper, item: Item, entries: Sequence[Entry], folder: Path) -> str:
    seeds = next((e.title for e in entries if e.kind == "seeds"), str(item.seeds))
    on = f" --device {item.device}" if item.device != "cpu" else ""
    command = f"fedwarden reproduce {paper.name} {item.name} --seeds {seeds}{on}"
    sheets = {
        e.file: Sheet(e.file.removeprefix(f"{item.name}-").removesuffix(".csv"), e.title, read_csv(folder / e.file))
        for e in entries
        if e.kind == "table"
    }
    parts = [
        f"## {heading(item)}",
        f"<!-- not run: {item.cost} -->\n```bash\n{command}\n```",
        f"*The paper:* {item.claim}",
        f"*Here:* {item.holds({s.name: s for s in sheets.values()}) if sheets else 'Not run yet.'}",
    ]
    if item.chosen:
        parts.append("*Chosen here:* " + "; ".join(item.chosen) + ".")
    parts += [_table(paper, file, sheet) for file, sheet in sheets.items()]
    pictures = [e.file for e in entries if e.kind == "picture"]
    parts += [f"![{Path(file).stem.replace('-', ' ')}]({paper.name}/{file})" for file in pictures]
    return "\n\n".join(parts)


def heading(item: Item) -> str:
    """The title of an item behind its number in the paper.

    >>> heading(Item("figure-2", "Rounds", "", lambda s, d: [], lambda f: [], lambda s: "", ""))
    'Figure 2: Rounds'
    >>> heading(Item("choices", "What choices change", "", lambda s, d: [], lambda f: [], lambda s: "", ""))
    'What choices change'
    """
    kind, _, number = item.name.partition("-")
    return f"{kind.capitalize()} {number}: {item.title}" if number[:1].isdigit() else item.title


def _table(paper: Paper, file: str, sheet: Sheet) -> str:
    """A link to a table; the site shows the table below a link that stands on a line by itself."""
    link, rows = f"[{sheet.title}]({paper.name}/{file})", len(sheet.grid[1])
    return link if rows <= LONG else f"{link}, {rows:,} rows."
