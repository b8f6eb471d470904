"""The site builds without a warning, and fetches nothing from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import site_hooks

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


def test_a_table_is_shown_below_a_link_of_its_own_line(tmp_path):
    (tmp_path / "a.csv").write_text('source,"70-30, fresh"\n"weights, cosine",**1** (1 to 1)\n')
    assert site_hooks.with_tables("Before\n\n[A table](a.csv)\n\nand [within](a.csv) a line", tmp_path) == (
        "Before\n\n[A table](a.csv)\n\n| source | 70-30, fresh |\n| --- | --- |\n| weights, cosine | **1** (1 to 1) |"
        "\n\nand [within](a.csv) a line"
    )


def test_every_table_of_the_audits_is_on_their_page():
    page = ROOT / "docs" / "results" / "audit-tables.md"
    shown = site_hooks.SHEET.findall(page.read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(f"audit/{path.name}" for path in (page.parent / "audit").glob("*.csv"))


@pytest.mark.slow
def test_the_site_builds_and_is_whole(tmp_path):
    """One test, since the tests of a file may run in several processes, and each would build a site of its own."""
    build(tmp_path)
    every_page_is_there(tmp_path)
    tables_in_csv_are_rendered(tmp_path)
    nothing_is_fetched_from_elsewhere(tmp_path)
    docstrings_are_rendered_with_their_examples(tmp_path)
    links_lead_to_the_examples_and_back(tmp_path)


def build(folder):
    tool = Path(sys.executable).with_name("mkdocs")
    done = subprocess.run(
        [tool, "build", "--strict", "--site-dir", folder], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def every_page_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    notebooks = [f"notebooks/{path.stem}" for path in (ROOT / "docs" / "notebooks").glob("*.ipynb")]
    for page in ("reference/python", "examples/deployment/index", "contributing", "changelog", *notebooks):
        assert (site / f"{page}.html").is_file(), page
    assert (site / "examples" / "digits.toml").is_file()
    assert all((site / f"{page}.ipynb").is_file() and (site / f"{page}-1.png").is_file() for page in notebooks)


def tables_in_csv_are_rendered(site):
    text = (site / "results" / "audit-tables.html").read_text(encoding="utf-8")
    tables = len(list((ROOT / "docs" / "results" / "audit").glob("*.csv")))
    assert tables == text.count("<table>") > 0
    assert (site / "results" / "audit" / "audit-many-mnist-smallest.csv").is_file()


def nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not OUTSIDE.findall(page.read_text(encoding="utf-8")), page


def docstrings_are_rendered_with_their_examples(site):
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "fedwarden.rules.gesd.gesd" in text
    assert "&gt;&gt;&gt;" in text
    assert "<blockquote>" not in text, "an example with prompts was read as a quotation"
    assert not re.search(r":(?:func|class|meth):", text)


def links_lead_to_the_examples_and_back(site):
    assert 'href="examples/flower-quickstart/index.html"' in (site / "flower.html").read_text(encoding="utf-8")
    assert 'href="../../deployment.html"' in (site / "examples" / "deployment" / "index.html").read_text(
        encoding="utf-8"
    )
