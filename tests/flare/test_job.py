"""A job carries the aggregator as JSON, and in the simulator of NVIDIA FLARE a poisoned site is out by name."""

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare", reason="the extra 'nvflare' is not installed")

from nvflare.apis.fl_exception import UnsafeComponentError
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer
from nvflare.fuel.utils.class_utils import ModuleScanner
from nvflare.fuel.utils.component_builder import ComponentBuilder

from fedwarden.nvflare import GuardedAggregator
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import RoundStory

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "nvflare"
LOST = "Communication error with client"
CLASS = "fedwarden.nvflare.aggregator.GuardedAggregator"
OPTIONS = {
    "warden": "pid_made",
    "options": {"k": 3.0},
    "aggregator": {"name": "trimmed_mean", "b": 1},
    "shares": {"site-1": 0.5},
    "weigh_by": "EXAMPLES",
    "run_name": "hospitals",
    "home": "/somewhere",
    "resume": True,
    "buffers": ("running_mean",),
    "sinks": ("tensorboard",),
    "wait": 60.0,
}
CLIENT = """
import os

import numpy as np
import nvflare.client as flare

flare.init()
site = flare.get_site_name()
while flare.is_running():
    asked = flare.receive()
    if site == "site-7" and asked.current_round == 1:
        os.kill(os.getpid(), 9)
    rng = np.random.default_rng([int(site[-1]), asked.current_round])
    sign = -8 if site == "site-3" else 1
    made = {k: v + sign * (0.1 + 0.02 * rng.normal(size=v.shape)).astype(v.dtype) for k, v in asked.params.items()}
    metrics = {"accuracy": 0.5 + int(site[-1]) / 100, "patients": 3.0}
    flare.send(flare.FLModel(params=made, metrics=metrics, meta={"NUM_STEPS_CURRENT_ROUND": 10}))
"""
JOB = """
import sys

import numpy as np
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe import SimEnv

from fedwarden.nvflare import GuardedAggregator, OnlyMetrics

recipe = NumpyFedAvgRecipe(
    name="small",
    model=np.arange(24.0).reshape(4, 6).tolist(),
    min_clients=7,
    num_rounds=4,
    train_script="client.py",
    aggregator=GuardedAggregator(options={"alike": True}, wait=5.0),
)
recipe.add_client_output_filter(OnlyMetrics(["accuracy", "NUM_STEPS_CURRENT_ROUND"]), tasks=["train"])
recipe.execute(SimEnv(num_clients=7, workspace_root=sys.argv[1]))
"""


class Builder(ComponentBuilder):
    """NVIDIA FLARE's own, over its own classes."""

    def get_module_scanner(self):
        return ModuleScanner(["nvflare"], ["api", "app_commons", "app_common"], True)


def exported(tmp_path, monkeypatch, aggregator):
    """The aggregator's table in the server's configuration of a job."""
    monkeypatch.chdir(tmp_path)
    Path("client.py").write_text(CLIENT)
    recipe = NumpyFedAvgRecipe(
        name="small", model=[[1.0]], min_clients=2, num_rounds=1, train_script="client.py", aggregator=aggregator
    )
    recipe.export(str(tmp_path / "job"))
    (path,) = (tmp_path / "job").rglob("config_fed_server.json")
    return json.loads(path.read_text())["workflows"][0]["args"]["aggregator"]


def test_a_job_carries_no_option_that_has_its_default(tmp_path, monkeypatch):
    assert exported(tmp_path, monkeypatch, GuardedAggregator()) == {"path": CLASS, "args": {}}


def test_a_job_carries_every_option(tmp_path, monkeypatch):
    table = exported(tmp_path, monkeypatch, GuardedAggregator(**OPTIONS))
    made = Builder().build_component(table)
    assert isinstance(made, GuardedAggregator)
    assert {name: getattr(made, name) for name in OPTIONS} == OPTIONS
    assert made.service.guard.watches[0].rule.k == 3.0
    assert made.service.guard.admission.shares == {"site-1": 0.5}


@pytest.mark.parametrize("entry", [CLASS, "fedwarden.nvflare."])
def test_a_server_without_custom_code_needs_the_class_in_its_list(entry, tmp_path):
    class Workspace:
        def get_resources_file_path(self):
            return str(tmp_path / "resources.json")

        def get_root_dir(self):
            return str(tmp_path)

    def allowed(names):
        (tmp_path / "resources.json").write_text(json.dumps({"class_allow_list": names}))
        ComponentPathAuthorizer().authorize_component_config({"path": CLASS}, workspace=Workspace())

    with pytest.raises(UnsafeComponentError):
        allowed(["nvflare.app_common."])
    allowed(["nvflare.app_common.", entry])


def environment(folder):
    """The simulator's processes find the same Python first on the path."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": path, "FEDWARDEN_HOME": str(folder / "runs"), "OMP_NUM_THREADS": "1"}


def run(script, folder, *args):
    """A script in a process of its own.

    The simulator picks a port for every site before that listens on it, and may lose one to another process. It then
    waits for the site for ever, so that the script is started once more.
    """
    for _ in range(3):
        code, said = attempt([sys.executable, str(script), *args], folder, environment(folder))
        if not lost_a_site(folder):
            break
        for made in [item for item in folder.iterdir() if item.is_dir()]:
            shutil.rmtree(made)
    assert code == 0, said[-8000:]
    return said


def attempt(command, folder, env):
    """Its exit code and what it said; ended with all that it has started once a site is lost."""
    with (
        (folder / "said.txt").open("w+") as said,
        subprocess.Popen(command, cwd=folder, stdout=said, stderr=subprocess.STDOUT, env=env) as process,
    ):
        end = time.monotonic() + 900
        while process.poll() is None and not lost_a_site(folder) and time.monotonic() < end:
            time.sleep(0.5)
        if process.poll() is None:
            for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
        process.wait()
        said.seek(0)
        return process.returncode, said.read()


def lost_a_site(folder):
    """Whether the simulator could not reach a site that it has started, by the words of its log."""
    logs = [*folder.rglob("log.txt"), *folder.rglob("said.txt")]
    return any(LOST in log.read_text(errors="replace") for log in logs)


@pytest.mark.slow
def test_in_the_simulator_a_poisoned_site_is_skipped_and_a_killed_one_absent_by_name(tmp_path):
    """Sites that hold alike data: one in doubt is skipped for as long as the doubt lasts. The job goes on."""
    (tmp_path / "client.py").write_text(CLIENT)
    (tmp_path / "job.py").write_text(JOB)
    done = subprocess.run(
        [sys.executable, "job.py", "workspace"],
        cwd=tmp_path,
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    said = done.stdout
    assert done.returncode == 0, said[-8000:]
    with Ledger(tmp_path / "runs") as ledger:
        (found,) = ledger.runs()
        records = ledger.records(found.id)
    assert (found.name, found.engine, found.state, len(records)) == ("small", "nvflare", "done", 4)
    assert found.config["rounds"] == 4
    silent = [[(r.client_id, r.reason.kind) for r in record.rejected] for record in records]
    assert silent == [[], *[[("site-7", "no_answer")]] * 3]
    assert "client site-7 rejected: did not answer in time" in said
    for record in records:
        there = {f"site-{i}" for i in range(1, 8 if record.round == 1 else 7)}
        assert set(record.client_ids) == there
        assert {c for c in record.client_ids if RoundStory(record).in_doubt.get(c)} == {"site-3"}
        assert record.weights[record.client_ids.index("site-3")] == 0
        told = {site: 0.5 + int(site[-1]) / 100 for site in there}
        assert record.reported["train/accuracy"] == told
        assert not [name for name in record.reported if "patients" in name]  # it stays at the site
        assert record.metrics["train/accuracy"] == pytest.approx(np.mean([told[c] for c in there - {"site-3"}]))
        assert record.metrics["worst_accuracy"] == 0.51
    assert "fedwarden: Client site-3 was skipped in round" in said
    (saved,) = (tmp_path / "workspace").rglob("server.npy")
    step = np.load(saved) - np.arange(24.0).reshape(4, 6)
    np.testing.assert_allclose(step, 0.4, atol=0.1)


@pytest.mark.slow
def test_the_example_finds_the_site_with_shifted_labels(tmp_path):
    """The site comes into doubt, and no other one does; it takes turns."""
    for name in ("job.py", "client.py", "model.py"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    run("job.py", tmp_path, "--sites", "6", "--rounds", "8")
    with Ledger(tmp_path / "fedwarden-runs") as ledger:
        (found,) = ledger.runs()
        records = ledger.records(found.id)
    assert (found.state, len(records)) == ("done", 8)
    assert {c for record in records for c in record.client_ids if RoundStory(record).in_doubt.get(c)} == {"site-3"}
    assert RoundStory(records[-1]).in_doubt.get("site-3")
