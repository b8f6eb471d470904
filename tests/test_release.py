"""What a release says of itself in several places is the same in all of them."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
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


def test_the_environment_of_the_peers_has_what_the_package_needs():
    """It is installed there without its dependencies, beside libraries that ask for others."""
    needed = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in PROJECT["dependencies"]}
    text = (ROOT / "benchmarks" / "peers-requirements.txt").read_text(encoding="utf-8")
    listed = {name.replace("-", "_") for name in re.findall(r"^([\w-]+)==", text, re.MULTILINE)}
    assert needed - {"torch"} <= listed  # which the Makefile installs first


def test_the_services_are_sound_for_systemd(tmp_path):
    verify = shutil.which("systemd-analyze") or pytest.skip("there is no systemd")
    units = [*(ROOT / "examples" / "operations").glob("*.service")]
    assert len(units) == 3
    for unit in units:  # with a program and a user that this machine has
        text = re.sub(r"/opt/fedwarden/bin/[\w-]+", "/bin/true", unit.read_text(encoding="utf-8"))
        (tmp_path / unit.name).write_text(text.replace("User=fedwarden", "User=root"), encoding="utf-8")
    done = subprocess.run([verify, "verify", *tmp_path.glob("*.service")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
