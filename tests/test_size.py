"""The package, all Python of the repository, and the pages stay within their ceilings."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CODE = ("src", "research", "tests", "tools", "benchmarks", "examples", "docs", "conftest.py")
CEILINGS = {  # lines as `wc -l` counts them, and words with a letter or digit
    "lines of the package": 41_300,
    "lines of all Python": 101_650,
    "words of the README, outside of code": 800,
    "words of a page": 2_500,
    "words of the pages, without results": 33_050,
}


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
    results = DOCS / "results"
    found = {
        "lines of the package": lines("src/fedwarden"),
        "lines of all Python": lines(*CODE),
        "words of the README, outside of code": words(readme),
        "words of a page": max(pages().values()),
        "words of the pages, without results": sum(
            many for page, many in pages().items() if results not in page.parents
        ),
    }
    assert {what: many for what, many in found.items() if many > CEILINGS[what]} == {}
