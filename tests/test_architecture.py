"""What the package may import, and what no file of it may contain."""

import ast
import json
import re
import subprocess
import sys
from functools import reduce
from importlib import import_module
from pathlib import Path

import house
import pytest

import fedwarden
from fedwarden.core.errors import MissingExtra
from fedwarden.core.registry import FOLDERS

SOURCE = Path(fedwarden.__file__).parent
ROOT = SOURCE.parents[1]
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"pydantic", "typer", "rich", "sklearn", "numba", "optuna", "flwr", "matplotlib", "pandas", "datasets"}
HEAVY |= {"plotly", "dash", "tomli_w"}
PICKLES = {"pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve"}
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DOTTED = sorted(set(re.findall(r"`([\w/]+(?:\.\w+)+)`", PAGE)))
PARAGRAPH = re.compile(r"^\*\*`(\w+)`\*\*(?:.+\n)+?Imports: (.+)\.$", re.MULTILINE)


def test_the_path_of_a_round_imports_torch_numpy_and_scipy_only():
    code = """
import json, sys
import numpy as np
import fedwarden as fw

imported = set(sys.modules)
warden = fw.Warden.preset("auto")
for t in (1, 2):
    warden.step(fw.Cohort(t, tuple("abcde"), fw.Updates.of(np.eye(5)), np.ones(5)))
print(json.dumps([sorted({name.partition(".")[0] for name in names}) for names in (imported, sys.modules)]))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    by_import, by_rounds = json.loads(out)
    assert not HEAVY & set(by_import), "import fedwarden"
    assert not HEAVY & set(by_rounds), "a guarded round"


def test_imports_go_one_way():
    tool = Path(sys.executable).with_name("lint-imports")
    if not tool.exists():
        pytest.skip("import-linter is not installed")
    done = subprocess.run([tool, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_says_what_it_is_for_unpickles_nothing_and_imports_at_its_top():
    faults = []
    for path in MODULES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found = [] if ast.get_docstring(tree) else ["has no docstring"]
        for node in ast.walk(tree):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"imports {n}" for n in names if n.partition(".")[0] in PICKLES]
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                found += [f"calls {called}"] if called in ("torch.load", "torch.save") else []
                found += ["allows pickles"] if any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False"
                                                   for k in node.keywords) else []  # fmt: skip
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                late = [n.lineno for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom)]
                found += [f"{node.name} imports in line {line}" for line in late]
        faults += [f"{path.relative_to(SOURCE)}: {fault}" for fault in found]
    assert faults == []


def test_everything_public_exists():
    assert all(hasattr(fedwarden, name) for name in fedwarden.__all__)
    assert len(set(fedwarden.__all__)) == len(fedwarden.__all__) <= 26


@pytest.mark.parametrize("name", ["PID", "GESD", "gesd", "robust_z", "divergence", "cosine", "procrustes", "cmd"])
def test_what_others_call_as_a_name_of_the_package_is_there(name):
    assert callable(getattr(fedwarden, name))


@pytest.mark.parametrize("home", ["rules", "history", "signals", "policies", "aggregators"])
def test_what_no_component_is_called_is_no_name_of_their_package(home):
    with pytest.raises(AttributeError, match="has no attribute 'Missing'"):
        import_module(f"fedwarden.{home}").__getattr__("Missing")


def test_the_picture_of_the_house_is_what_the_code_is_now():
    assert house.main(["--check"]) == 0, "rooms, their first sentences or arrows changed: python tools/house.py"


def test_the_picture_has_every_floor_and_every_import_is_an_arrow_or_a_chain_of_them():
    assert sorted(room for floor in house.floors() for room in floor) == sorted(house.rooms())
    graph = house.imports()
    reached = {room: {b for a, b in house.arrows(graph) if a == room} for room in graph}
    for _ in graph:  # no chain is longer than there are rooms
        reached = {room: far.union(*(reached[b] for b in far)) for room, far in reached.items()}
    assert all(graph[room] <= reached[room] for room in graph)


def test_a_stale_picture_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(house, "ROOT", tmp_path)
    monkeypatch.setattr(house, "PICTURE", tmp_path / "house.svg")
    monkeypatch.setattr(house, "picture", lambda: "<svg/>")
    assert house.main(["--check"]) == 1
    assert "house.svg is not what the code is now: python tools/house.py" in capsys.readouterr().err
    assert house.main([]) == house.main(["--check"]) == 0


def test_every_room_says_in_one_sentence_what_it_is():
    long = {room: said for room, said in house.rooms().items() if not re.fullmatch(r"[A-Z][^.]{20,118}\.", said)}
    assert long == {}


def test_the_page_has_a_paragraph_for_every_room_with_its_imports_and_for_no_other():
    told = dict(PARAGRAPH.findall(PAGE))
    graph = house.imports()
    assert told == {room: ", ".join(f"`{name}`" for name in sorted(graph[room])) or "nothing" for room in graph}


def test_every_name_on_the_page_exists():
    assert [name for name in DOTTED if not _exists(name)] == []


def _exists(name):
    if (ROOT / name).exists() or (SOURCE / name).exists():
        return True
    parts = name.split(".")
    size = max(i for i in range(len(parts) + 1) if _is_module(parts[:i]))
    try:
        reduce(getattr, parts[size:], import_module(".".join(["fedwarden", *parts[:size]])))
    except AttributeError:
        return False
    except MissingExtra:
        pass  # what it needs is not installed here
    return True


def _is_module(parts):
    path = SOURCE.joinpath(*parts)
    return path.is_dir() or path.with_suffix(".py").is_file()


def test_the_page_has_the_place_of_every_kind():
    told = dict(re.findall(r"^\| (\w+) \| `([\w.]+)` \|$", PAGE, re.MULTILINE))
    assert {kind: f"fedwarden.{place}" for kind, place in told.items()} == FOLDERS
