"""The package, all Python of the repository, and the pages stay within their ceilings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = ("src", "research", "tests", "tools", "benchmarks", "examples", "docs", "conftest.py")
CEILINGS = {  # lines as `wc -l` counts them, and words with a letter or digit
    "lines of the package": 50_000,
    "lines of all Python": 92_000,
    "words of the README, outside of code": 800,
    "words of a page": 2_500,
    "words of the pages, without results": 35_000,
}
LONG = {  # pages of results that are over the ceiling until they are cut
    "shifts.md", "pid-made.md", *(f"defences/{made}/defences.md" for made in (
        "digits", "mnist", "strongest", "strongest-mnist")),
}  # fmt: skip


def lines(*places: str) -> int:
    paths = [
        path for place in places for path in ((ROOT / place).rglob("*.py") if "." not in place else [ROOT / place])
    ]
    return sum(path.read_bytes().count(b"\n") for path in paths)


def words(text: str) -> int:
    return sum(bool(re.search(r"\w", word)) for word in text.split())


def pages() -> dict[Path, int]:
    return {page: words(page.read_text(encoding="utf-8")) for page in DOCS.rglob("*.md")}


def test_code_and_pages_stay_within_their_ceilings():
    readme = re.sub(
        r"^```.*?^```$", "", (ROOT / "README.md").read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    results, known = DOCS / "results", {DOCS / "results" / name for name in LONG}
    found = {
        "lines of the package": lines("src/fedwarden"),
        "lines of all Python": lines(*CODE),
        "words of the README, outside of code": words(readme),
        "words of a page": max(many for page, many in pages().items() if page not in known),
        "words of the pages, without results": sum(
            many for page, many in pages().items() if results not in page.parents
        ),
    }
    assert {what: many for what, many in found.items() if many > CEILINGS[what]} == {}


def test_a_page_that_may_be_long_is_long():
    many = pages()
    assert {name for name in LONG if many[DOCS / "results" / name] <= CEILINGS["words of a page"]} == set()
