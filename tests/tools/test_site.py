"""The site builds without a warning, and fetches nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OUTSIDE = re.compile(r"""<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=["']?(?:https?:)?//[^>]*>""")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    tool = Path(sys.executable).with_name("mkdocs")
    done = subprocess.run(
        [tool, "build", "--strict", "--quiet", "--site-dir", folder], cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_there(site):
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file(), page
    for page in ("reference/python", "examples/deployment/index", "contributing", "changelog"):
        assert (site / f"{page}.html").is_file(), page
    assert (site / "examples" / "digits.toml").is_file()


@pytest.mark.slow
def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        assert not OUTSIDE.findall(page.read_text(encoding="utf-8")), page


@pytest.mark.slow
def test_docstrings_are_rendered_with_their_examples(site):
    text = (site / "reference" / "python.html").read_text(encoding="utf-8")
    assert "fedwarden.rules.gesd.gesd" in text
    assert "&gt;&gt;&gt;" in text
    assert "<blockquote>" not in text, "an example with prompts was read as a quotation"
    assert not re.search(r":(?:func|class|meth):", text)


@pytest.mark.slow
def test_links_lead_to_the_examples_and_back(site):
    assert 'href="examples/flower-quickstart/index.html"' in (site / "flower.html").read_text(encoding="utf-8")
    assert 'href="../../deployment.html"' in (site / "examples" / "deployment" / "index.html").read_text(
        encoding="utf-8"
    )
