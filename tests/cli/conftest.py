"""A tiny scenario, a workspace of its own, and one recorded run that the readers share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedwarden.cli import main

Call = Callable[..., tuple[int, str, str]]

TINY = """
name = "tiny"
rounds = 3
target = 0.5

[data]
dataset = "digits"
clients = 6

[model]
name = "mlp"
hidden = [16]

[train]
momentum = 0.9
workers = 1

[[attacks]]
name = "label_flip"
count = 1

[guard]
preset = "pid-made"
options = {k = 1.5}
"""


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test has a workspace of its own and a wide, plain terminal."""
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "home"


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with one finished run."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "tiny.toml").write_text(TINY)
    assert main(["run", str(folder / "tiny.toml"), "--home", str(folder / "home"), "--quiet"]) == 0
    return folder / "home"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Call the command line; gives the exit code, standard output and standard error."""

    def run(*args: object) -> tuple[int, str, str]:
        code = main([str(a) for a in args])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def call_json(call: Call) -> Callable[..., Any]:
    """Call with --json; gives the object, and insists that standard output holds nothing else."""

    def run(*args: object) -> Any:
        code, out, _ = call(*args, "--json")
        assert code == 0
        return json.loads(out)

    return run
