"""A ledger names modules; nobody who reads or continues it imports them unless he asks for it himself."""

import json
import shutil
import sqlite3
from contextlib import closing
from itertools import count

import pytest

from fedwarden.cli import main
from fedwarden.sim.federation import simulate
from fedwarden.sim.scenario import Scenario
from fedwarden.store.ledger import Ledger

NUMBERS = count()
EVIL = """
from dataclasses import dataclass
from pathlib import Path

from fedwarden.core.registry import register
from fedwarden.rules.sigma import KSigma

with Path({trap!r}).open("a") as file:
    file.write("imported\\n")


@register("rule", "{name}_rule")
@dataclass(frozen=True)
class Evil(KSigma):
    \"\"\"Flags as mean + k sigma does.\"\"\"

    k: float = 2.0
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A finished run of two rounds with signals, for all tests to copy."""
    folder = tmp_path_factory.mktemp("recorded")
    table = {
        "rounds": 2,
        "data": {"clients": 5},
        "model": {"name": "mlp", "hidden": [4]},
        "train": {"workers": 2},
        "guard": {"preset": "pid_made"},
    }
    simulate(Scenario.model_validate(table), folder)
    return folder


class Trap:
    """A workspace whose run names a module that writes a file when it is imported."""

    def __init__(self, folder, module, file):
        self.folder, self.module, self.file = folder, module, file

    @property
    def sprung(self):
        return self.file.exists()

    def configure(self, **changes):
        with closing(sqlite3.connect(self.folder / "ledger.sqlite", isolation_level=None)) as db:
            ((config,),) = db.execute("SELECT config FROM run").fetchall()
            new = {**json.loads(config), "imports": [self.module], **changes}
            db.execute("UPDATE run SET config = ?", (json.dumps(new),))


@pytest.fixture
def trap(recorded, tmp_path, monkeypatch):
    name = f"evil_{next(NUMBERS)}"
    made = Trap(tmp_path / "home", name, tmp_path / "trap")
    source = tmp_path / "modules"
    source.mkdir()
    (source / f"{name}.py").write_text(EVIL.format(trap=str(made.file), name=name))
    monkeypatch.syspath_prepend(str(source))
    monkeypatch.setenv("PYTHONPATH", str(source), prepend=":")  # worker processes find it as well
    monkeypatch.chdir(tmp_path)
    made.folder.mkdir()
    for name in ("ledger.sqlite", "checkpoints"):  # and not the lock of the process that recorded it
        source = recorded / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, made.folder / name)
    made.configure()
    return made


READERS = (
    "runs", "show 1", "show 1 --round 2", "report 1", "export 1 --to json", "replay 1", "replay 1 --preset pid_made",
    "send 1 --to tensorboard", "doctor", "run --resume 1", "run --resume 1 --set rounds=3",
)  # fmt: skip


@pytest.mark.parametrize("args", READERS)
def test_what_a_ledger_names_is_not_imported(trap, args, capsys):
    assert main([*args.split(), "--home", str(trap.folder)]) == 0, capsys.readouterr().err
    assert not trap.sprung


@pytest.mark.parametrize("command", ["show", "report", "replay", "send", "run"])
def test_what_the_user_names_is_imported(trap, command, capsys):
    rest = {"send": ["1", "--to", "tensorboard"], "run": ["--resume", "1", "--set", "rounds=3"]}.get(command, ["1"])
    assert main([command, *rest, "--import", trap.module, "--home", str(trap.folder)]) == 0, capsys.readouterr().err
    assert trap.sprung
    with Ledger(trap.folder, read_only=True) as ledger:
        assert ledger.run(1).config["imports"] == [trap.module]  # as it was recorded


def test_the_dashboard_imports_nothing_that_a_ledger_names(trap):
    pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")
    from fedwarden.dashboard.pages import PAGES, whatif
    from fedwarden.dashboard.routes import Page
    from fedwarden.dashboard.state import Workspace

    workspace = Workspace(trap.folder)
    for kind, page in PAGES.items():
        page.show(Page(kind, 1))
        page.version(workspace, Page(kind, 1))
    shown = str(whatif.verdict(workspace, workspace.view(1), ("rule=gesd",)))
    assert "clients are treated differently" in shown or "The same decisions" in shown
    assert not trap.sprung


def plugin_guard(name):
    watch = {"name": "centroid_distance", "signal": "centroid_distance", "rule": f"{name}_rule"}
    return {"preset": "none", "watches": [watch]}


@pytest.mark.parametrize("args", [["replay", "1"], ["run", "--resume", "1", "--set", "rounds=3"]], ids=" ".join)
def test_a_missing_plug_in_is_named_with_what_to_add(trap, args, capsys):
    trap.configure(guard=plugin_guard(trap.module))
    assert main([*args, "--home", str(trap.folder)]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert f"no rule '{trap.module}_rule'" in err
    assert f"add --import {trap.module} if you trust it" in err
    assert not trap.sprung
    if args[0] == "replay":
        assert main([*args, "--import", trap.module, "--home", str(trap.folder)]) == 0
        assert trap.sprung


def test_a_module_that_is_not_there_is_one_line(trap, capsys):
    for name in ("not.there", "", ".relative", "a b"):
        assert main(["replay", "1", "--import", name, "--home", str(trap.folder)]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: cannot import {name!r}, which --import asks for")
        assert err.count("\n") == 1


def test_a_file_of_ones_own_imports_what_it_names(trap, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text(
        f'rounds = 1\nimports = ["{trap.module}"]\n[data]\nclients = 4\n[model]\nname = "mlp"\nhidden = [4]\n'
        "[train]\nworkers = 1\n"
    )
    assert main(["run", "mine.toml", "--home", str(tmp_path / "own"), "--quiet"]) == 0, capsys.readouterr().err
    assert trap.sprung


@pytest.mark.parametrize("imports", [[5], "evil", None, [["evil"]], ["a\x1b[2J"]])
def test_imports_of_another_kind_are_one_line_or_nothing(trap, imports, capsys):
    trap.configure(imports=imports, guard={"preset": "none", "policy": "no such policy"})
    assert main(["replay", "1", "--home", str(trap.folder)]) == 2
    err = capsys.readouterr().err
    assert err.count("error: ") == 1
    assert "\x1b" not in err
