"""What the package may import, and what no file of it may contain."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedwarden

SOURCE = Path(fedwarden.__file__).parent
ROOT = SOURCE.parents[1]
MODULES = sorted(SOURCE.rglob("*.py"))
HEAVY = {"pydantic", "typer", "rich", "sklearn", "numba", "optuna", "flwr", "matplotlib", "pandas", "datasets"}
HEAVY |= {"plotly", "dash", "tomli_w"}


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


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for_and_unpickles_nothing(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), "a module needs a docstring"
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        assert not {n.partition(".")[0] for n in names} & {
            "pickle",
            "cPickle",
            "dill",
            "joblib",
            "cloudpickle",
            "shelve",
        }
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in ("torch.load", "torch.save"), "safetensors or npz instead"
            assert not any(k.arg == "allow_pickle" and ast.unparse(k.value) != "False" for k in node.keywords)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_import_inside_a_function(path):
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    for function in (n for n in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(n, functions)):
        found = [n.lineno for n in ast.walk(function) if isinstance(n, ast.Import | ast.ImportFrom)]
        assert not found, f"{function.name} imports in line {found[0]}"


def test_everything_public_exists():
    assert all(hasattr(fedwarden, name) for name in fedwarden.__all__)
    assert len(set(fedwarden.__all__)) == len(fedwarden.__all__)
