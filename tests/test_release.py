"""What a release says of itself in several places is the same in all of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import fedwarden

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_the_citation_is_of_this_version_and_licence():
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["title"] == PROJECT["name"]
    assert CITATION["version"] == fedwarden.__version__
    assert CITATION["license"] == PROJECT["license"]
    assert [author["name"] for author in CITATION["authors"]] == [author["name"] for author in PROJECT["authors"]]


def test_every_paper_can_be_found():
    assert all(paper["authors"] and paper["title"] and paper["url"] for paper in CITATION["references"])


def test_the_package_says_that_it_is_typed():
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (Path(fedwarden.__file__).parent / "py.typed").is_file()
