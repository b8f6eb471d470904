"""Pages and messages keep to the project's words."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

BANNED = (  # in pages and messages
    r"anybody", r"beyond question", r"doubted", r"guilty", r"hangs? on", r"in earnest", r"noted,? and", r"spared",
)  # fmt: skip
IN_PAGES = (
    *BANNED,
    r"brought up to date", r"by the way of", r"goes? on", r"nobody", r"of whom", r"says? so", r"somebody",
    r"told of", r"whoever", r"wronged",
)  # fmt: skip


def prose(text: str) -> str:
    """A page without its fences."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def pages() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
    yield from sorted(DOCS.rglob("*.md"))
    yield from sorted((ROOT / "examples").glob("*/README.md"))


def messages(source: str) -> Iterator[str]:
    """The texts of a module of more than one word, but no docstrings."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and " " in text.strip() and text not in said:
            yield text


def found(patterns: tuple[str, ...], text: str) -> list[str]:
    return re.findall(rf"\b(?:{'|'.join(patterns)})\b", text, re.IGNORECASE)


@pytest.mark.parametrize("page", list(pages()), ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_keeps_to_the_words(page):
    assert found(IN_PAGES, re.sub(r"`[^`]*`", "", prose(page.read_text(encoding="utf-8")))) == []


def test_messages_keep_to_the_words():
    sources = sorted((ROOT / "src" / "fedwarden").rglob("*.py"))
    said = {(path.name, text) for path in sources for text in messages(path.read_text(encoding="utf-8"))}
    assert {(name, text) for name, text in said if found(BANNED, text)} == set()


def test_no_docstring_has_a_sentence_that_begins_with_who():
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "research" / "src").rglob("*.py")]
    begins = re.compile(r'(?:\. |: |""")(?:Who|Whose|Of whom|Nobody) ')
    assert [str(path) for path in sources if begins.search(path.read_text(encoding="utf-8"))] == []


def test_a_banned_word_is_found_in_a_message_and_not_in_a_docstring():
    source = 'def f():\n    """It is in earnest."""\n    raise ValueError(f"{1} was spared")\n'
    assert [found(BANNED, text) for text in messages(source)] == [["spared"]]
    assert found(IN_PAGES, "This goes on, as Nobody says so.") == ["goes on", "Nobody", "says so"]
