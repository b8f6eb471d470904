"""What mkdocs does beyond reading docs/: it writes the reference, makes pages of the notebooks, takes in the examples
and the pages at the root, and shows tables that are kept as CSV.

Links in the sources lead from file to file, as a reader of the repository follows them. Here they are led to the same
file's page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import Any

import notebooks
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from fedwarden.studies.tables import markdown as table
from fedwarden_research.studies.tables import read_csv

ROOT = Path(__file__).parents[1]
AT_THE_ROOT = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security-policy.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
}
ON_THE_SITE = {**AT_THE_ROOT, "README.md": "index.md"}
SHOWN = {".md", ".py", ".sh", ".toml"}
LINK = re.compile(r"(\]\()((?:\.\./)+[^)#\s]+|(?:docs/|examples/)?[\w./-]+)(?=[)#])")
SHEET = re.compile(r"^\[[^\]]+\]\(([\w./-]+\.csv)\)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages, the notebooks, the examples, and what lies at the root of the repository."""
    for name, write in reference.PAGES.items():
        files.append(File.generated(config, name, content=write()))
    for name in notebooks.names():
        text, pictures = notebooks.page(notebooks.load(name), name)
        files.append(File.generated(config, f"notebooks/{name}.md", content=text))
        for file, picture in pictures.items():
            files.append(File.generated(config, f"notebooks/{file}", content=picture))
    for path in sorted((ROOT / "examples").rglob("*")):
        if path.suffix in SHOWN:
            files.append(File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path)))
    for name, page in AT_THE_ROOT.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lead links to where their targets are on the site; show examples with prompts, and tables below their links."""
    source = page.file.abs_src_path
    if source:
        markdown = with_tables(markdown, Path(source).parent)
        markdown = LINK.sub(lambda found: found[1] + _led(found[2], Path(source).parent, page.file.src_uri), markdown)
    return markdown.replace("```python\n>>>", "```pycon\n>>>")


def with_tables(markdown: str, folder: Path) -> str:
    """Below a link to a CSV file that stands on a line by itself: the table in that file."""
    return SHEET.sub(lambda found: f"{found[0]}\n\n{table(*read_csv(folder / found[1]))}", markdown)


def _led(target: str, folder: Path, page: str) -> str:
    """The target of a link, as seen from a page of the site; what is not ours stays as it is."""
    path = Path(os.path.normpath(folder / target))
    if not path.exists() or not path.is_relative_to(ROOT):
        return target
    if path.is_dir():
        path = path / "README.md"
    inside = path.relative_to(ROOT).as_posix()
    place = ON_THE_SITE.get(inside, inside.removeprefix("docs/"))
    return os.path.relpath(place, PurePosixPath(page).parent)
