"""The example apps as Flower Hub takes them: built, installed and run from the bundle, without a network."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
import zipfile
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedwarden.store.ledger import Ledger

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TOOLS = Path(sys.executable).parent


@pytest.fixture
def environment(tmp_path, swept):
    (tmp_path / "flwr").mkdir()
    return {
        **os.environ,
        "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "flwr"),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "300",
    }


def command(environment, folder, *words, timeout=120):
    done = subprocess.run(
        [TOOLS / "flwr", *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def installed(app, environment, folder):
    """The folder that ``flwr install`` makes of what ``flwr build`` makes of an app, by the hub's own rules."""
    command(environment, folder, "build", "--app", str(app))
    (bundle,) = folder.glob("*.fab")
    command(environment, folder, "install", str(bundle))
    (where,) = (folder / "flwr" / "apps").iterdir()
    assert bundle.stat().st_size < 30_000
    held = {name for name in zipfile.ZipFile(bundle).namelist() if not name.startswith(".info")}
    (package,) = {name.partition("/")[0] for name in held} - {"pyproject.toml", "LICENSE", "README.md"}
    assert held >= {"pyproject.toml", "LICENSE", "README.md", f"{package}/client.py", f"{package}/server.py"}
    told = tomllib.loads((where / "pyproject.toml").read_text())
    assert told["tool"]["flwr"]["app"]["fab-format-version"] == 1
    assert told["tool"]["flwr"]["app"]["publisher"] == "your-account"
    assert (where / "LICENSE").read_bytes() == (EXAMPLES.parent / "LICENSE").read_bytes()
    return where


@pytest.mark.slow
def test_the_app_with_adapters_is_built_and_installed(environment, tmp_path):
    """Its data and model are not at hand; the others run below."""
    installed(EXAMPLES / "flower-lora", environment, tmp_path)


@contextmanager
def superlink(environment, folder):
    """Flower's simulation engine on loopback, ended with all that it started."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (folder / "flwr" / "config.toml").write_text(f'[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n')
    switches = ["--insecure", "--simulation", "--disable-runtime-dependency-installation", "--port", port]
    with (folder / "superlink.log").open("wb") as log:
        process = subprocess.Popen(
            [TOOLS / "flower-superlink", *switches],
            env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 90
        while socket.socket().connect_ex(("127.0.0.1", int(port))):
            assert process.poll() is None, (folder / "superlink.log").read_text()[-3000:]
            assert time.monotonic() < deadline, "the SuperLink does not answer"
            time.sleep(0.5)
        yield
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=10)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def run(app, environment, folder, nodes, **config):
    where = installed(app, environment, folder)
    given = " ".join(f"{key.replace('_', '-')}={value}" for key, value in config.items())
    with superlink(environment, folder):
        return command(
            environment, folder, "run", str(where), "here", "--stream",
            "--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1",
            "--run-config", f"{given} home='{folder / 'runs'}'", timeout=400,
        )  # fmt: skip


@pytest.mark.slow
def test_the_quickstart_runs_from_its_bundle(environment, tmp_path):
    said = run(EXAMPLES / "flower-quickstart", environment, tmp_path, 10, num_server_rounds=3)
    with Ledger(tmp_path / "runs") as ledger:
        found = ledger.run("quickstart")
        records = ledger.records(found.id)
    assert (found.state, len(records)) == ("done", 3), said[-3000:]
    assert not any(record.excluded for record in records)  # three rounds are too few for a doubt
    assert records[-1].metrics["accuracy"] > 0.8


@pytest.mark.slow
def test_the_participant_sees_a_change_from_its_bundle(environment, tmp_path):
    said = run(EXAMPLES / "flower-audit", environment, tmp_path, 2, num_server_rounds=14)
    with Ledger(tmp_path / "runs") as ledger:
        found = ledger.run("audit")
        (who,) = ledger.observers(found.id)
        seen = ledger.observations(found.id, who)
    assert {o.round for o in seen} == set(range(1, 14)), said[-3000:]
    assert {o.round for o in seen if o.alarm} == {10}


@pytest.mark.slow
def test_nodes_that_have_spent_their_privacy_answer_no_more(environment, tmp_path):
    app = shutil.copytree(EXAMPLES / "flower-quickstart", tmp_path / "app")
    client = app / "quickstart" / "client.py"
    mod = "clip_and_noise(norm=1.0, noise=10.0, epsilon=1.1)"  # two answers cost 1.06, three 1.33
    text = client.read_text().replace("ClientApp()", f"ClientApp(mods=[{mod}])")
    client.write_text(
        text.replace("from quickstart", "from fedwarden.flower.mods import clip_and_noise\nfrom quickstart")
    )
    said = run(app, environment, tmp_path, 3, num_server_rounds=3, poisoned=-1)
    with Ledger(tmp_path / "runs") as ledger:
        records = ledger.records(ledger.run("quickstart").id)
    assert [len(record.client_ids) for record in records] == [3, 3, 0], said[-3000:]
    assert ["privacy budget" in str(r.reason) for r in records[2].rejected] == [True] * 3
