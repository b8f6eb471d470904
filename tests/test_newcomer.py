"""A newcomer's path in CONTRIBUTING is as long as it says, and short enough.

Words are those of the sections that an item links to, with their code; characters are those of the commands in an item
and of the TOML in its sections, which is written by hand.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORDS_A_MINUTE, CHARACTERS_A_MINUTE, MINUTES = 200, 150, 15
LINK = re.compile(r"\]\(([\w/.-]+\.md)#([\w-]+)\)")
COMMAND = re.compile(r"`((?:git|cd|make|source|fedwarden) [^`]+)`")
TOML = re.compile(r"^```toml\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SAID = re.compile(r"Read: (\d+) words\. Typed: (\d+) characters\.")


def path() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return text.split("\n## A newcomer's path\n")[1].split("\n## ")[0]


def items() -> list[str]:
    return re.split(r"^- \[ \] ", path().split("\n\nIn all:")[0], flags=re.MULTILINE)[1:]


def section(page: str, anchor: str) -> str:
    """The text below a heading, up to the next one."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.sub(r"^```.*?^```$", lambda found: re.sub(r"^#", "\0", found[0], flags=re.M), text, flags=re.S | re.M)
    for part in re.split(r"^#+ ", fences, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        if re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") == anchor:
            return re.sub(r"<!--.*?-->", "", body.replace("\0", "#"), flags=re.DOTALL)
    raise AssertionError(f"{page} has no heading #{anchor}")


def counted(item: str) -> tuple[int, int]:
    """Words to read and characters to type."""
    texts = [section(*link) for link in LINK.findall(item)]
    words = sum(bool(re.search(r"\w", word)) for text in texts for word in text.split())
    typed = [*COMMAND.findall(item), *(toml for text in texts for toml in TOML.findall(text))]
    return words, sum(len(part) + 1 for part in typed)


@pytest.mark.parametrize("number", range(len(items())))
def test_a_step_is_as_long_as_it_says(number):
    item = items()[number]
    found = SAID.search(item)
    assert found, f"step {number + 1} does not say how long it is"
    assert tuple(map(int, found.groups())) == counted(item), f"step {number + 1}: {item:.60}..."


def test_all_steps_together_take_less_than_a_quarter_of_an_hour():
    words, characters = (sum(column) for column in zip(*map(counted, items()), strict=True))
    minutes = words / WORDS_A_MINUTE + characters / CHARACTERS_A_MINUTE
    assert f"In all: {words} words and {characters} characters, {minutes:.1f} minutes." in path()
    assert minutes < MINUTES


def test_a_section_ends_at_the_next_heading_and_not_at_a_comment_in_code(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# One two\n\nthree\n\n```toml\n# a comment\nb = 1\n```\n\n## Four\n\nfive\n")
    assert section("a.md", "one-two").split() == ["three", "```toml", "#", "a", "comment", "b", "=", "1", "```"]
    assert counted("Type `make demo` and read [this](a.md#one-two).") == (6, len("make demo\n# a comment\nb = 1\n\n"))
