"""What each import loads, told by a fresh interpreter: packages of others, and rooms of our own."""

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec

import pytest

import fedwarden

NUMBERS = "import numpy, torch, scipy.special, scipy.spatial.distance"
FLOWER = "import flwr.app, flwr.clientapp, flwr.serverapp.strategy, flwr.superlink.grid, safetensors.torch"
FLARE = (
    "import nvflare.app_common.aggregators.model_aggregator, nvflare.app_common.utils.fl_model_utils, safetensors.torch"
)
SIMULATOR = {"sim", "attacks", "papers", "studies", "conformance", "cli", "dashboard", "report", "figures"}
HEAVY = {"sklearn", "pandas", "pyarrow", "joblib", "plotly", "dash", "matplotlib", "optuna", "numba"}
COMMANDS = {"pydantic", "typer", "rich"}
CODE = """
import json, sys
exec(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""


@cache
def modules(statement):
    done = subprocess.run([sys.executable, "-c", CODE, statement], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return frozenset(json.loads(done.stdout.splitlines()[-1]))


def packages(statement):
    """Packages of others; without the helpers that compiled modules bring along."""
    names = {name.partition(".")[0] for name in modules(statement)} - sys.stdlib_module_names
    return {name for name in names if not name.startswith("_")} - {"cython_runtime", "fedwarden"}


def rooms(statement):
    """The folders and single files of fedwarden."""
    return {name.split(".")[1] for name in modules(statement) if name.startswith("fedwarden.")}


def beyond(statement, known):
    """What a statement loads besides what others load by themselves."""
    return packages(statement) - packages(known)


def test_import_fedwarden_loads_no_part_of_it():
    assert beyond("import fedwarden", "pass") == set()
    ours = {name for name in modules("import fedwarden") if name.startswith("fedwarden.")}
    assert ours == {"fedwarden.core", "fedwarden.core.late"}


@pytest.mark.slow
def test_every_public_name_but_those_of_the_simulator_loads_torch_numpy_and_scipy():
    everything = f"from fedwarden import {', '.join({*fedwarden.__all__} - {'simulate', 'Dataset'})}"
    assert {"torch", "numpy", "scipy"} <= packages(everything)
    assert beyond(everything, NUMBERS) == set()
    assert not rooms(everything) & (SIMULATOR | {"flower", "nvflare", "sinks"})


def test_the_dashboard_starts_without_torch():
    pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")
    assert "torch" not in packages("import fedwarden.dashboard.app")


@pytest.mark.slow
def test_the_flower_integration_loads_flower_and_nothing_of_the_simulator():
    if find_spec("flwr") is None:
        pytest.skip("the extra 'flower' is not installed")
    home = "fedwarden.flower"
    statement = f"from {home} import Guarded, audit_mod; from {home}.mods import clip_and_noise, only_metrics"
    assert {"torch", "flwr"} <= packages(statement)
    assert beyond(statement, f"{NUMBERS}; {FLOWER}") == set()  # Flower itself loads pydantic, typer and rich
    assert not packages(statement) & HEAVY
    assert not rooms(statement) & SIMULATOR


@pytest.mark.slow
def test_the_nvflare_integration_loads_nvflare_and_nothing_of_the_simulator():
    if find_spec("nvflare") is None:
        pytest.skip("the extra 'nvflare' is not installed")
    statement = "from fedwarden.nvflare import GuardedAggregator, OnlyMetrics"
    assert {"torch", "nvflare"} <= packages(statement)
    assert beyond(statement, f"{NUMBERS}; {FLARE}") == set()
    assert not packages(statement) & HEAVY
    assert not rooms(statement) & (SIMULATOR | {"flower"})


@pytest.mark.slow
def test_column_shards_load_ray_and_nothing_of_the_guard():
    if find_spec("ray") is None:
        pytest.skip("the extra 'shards' is not installed")
    statement = "from fedwarden.shards import Shards"
    assert beyond(statement, f"{NUMBERS}; import ray") == set()
    assert rooms(statement) == {"core", "shards", "updates"}


def test_the_command_line_loads_typer_until_a_command_runs():
    assert beyond("import fedwarden.cli", "import typer, typer.core") == set()
    assert rooms("import fedwarden.cli") == {"cli", "core"}


@pytest.mark.parametrize(
    ("command", "own"),
    [
        ("workspace", {"core", "store"}),
        ("show", {"audit", "core", "guard", "history", "rules", "store", "sim", "sinks"}),
    ],
)
def test_commands_that_read_a_run_load_no_torch(command, own):
    statement = f"import fedwarden.cli.{command}"
    assert not packages(statement) & (HEAVY | {"torch", "scipy", "flwr"})
    assert rooms(statement) == {"cli", *own}


@pytest.mark.slow
def test_a_run_begins_without_libraries_that_take_as_long_to_import_as_torch():
    assert not packages("import fedwarden.cli.run") & HEAVY


def test_reading_a_ledger_takes_numpy():
    statement = "from fedwarden.store import ledger, record, export"
    assert beyond(statement, "import numpy") == set()
    assert rooms(statement) == {"core", "store"}
    assert not packages(statement) & COMMANDS
