"""A federation on this machine as it would be on many: TLS, node authentication, one poisoned node, one killed.

Starts a SuperLink and SuperNodes on loopback, runs the quickstart app on them, kills a node in the middle of a round,
shows what the ledger says, and ends everything that it started.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).resolve().parent
APP = HERE.parent / "flower-quickstart"
TOOLS = Path(sys.executable).parent
OFFLINE = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # on the way out everything is ended
    folder = Path(options.folder or tempfile.mkdtemp(prefix="fedwarden-deployment-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + options.timeout
    say(f"everything of this federation is in {folder}")
    subprocess.run([HERE / "certificates.sh", folder / "keys", str(options.nodes)], check=True, timeout=60)
    environment = {
        **os.environ, **OFFLINE,
        "PATH": f"{TOOLS}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(folder / "flwr"),
        "FEDWARDEN_HOME": str(folder / "runs"),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    with ExitStack() as stack:
        federation = Federation(folder, environment, stack)
        federation.start_superlink()
        for i in range(options.nodes):
            federation.start_node(i, options.nodes, options.red_team.get(i, ""))
        say(f"{options.nodes} nodes registered and started")
        run = federation.start_run(options)
        if options.killed >= 0:
            wait_until(lambda: rounds_of(folder) >= 1 or run.poll() is not None, deadline, "the first round")
            time.sleep(2)  # the second round is under way
            say(
                f"killing node {options.killed} with -9; its round ends when the SuperLink misses it, in about a minute"
            )
            end(federation.nodes[options.killed], signal.SIGKILL)
        code = run.wait(timeout=max(1.0, deadline - time.monotonic()))
    if code != 0 or rounds_of(folder) < options.rounds:
        print((folder / "run.log").read_text()[-4000:], file=sys.stderr)
        say(f"the run ended with code {code} after {rounds_of(folder)} of {options.rounds} rounds")
        return 1
    attacked = "".join(f", node {i} attacked by {name}" for i, name in options.red_team.items())
    say(f"done; node {options.poisoned} was poisoned, node {options.killed} was killed{attacked}. The ledger says:")
    subprocess.run([TOOLS / "fedwarden", "show", "quickstart"], env={**environment, "COLUMNS": "160"}, timeout=60)
    return 0


class Federation:
    """The processes of one federation; each is ended with the processes it started when the stack unwinds."""

    def __init__(self, folder: Path, environment: dict[str, str], stack: ExitStack) -> None:
        self.folder, self.environment, self.stack = folder, environment, stack
        self.keys, self.port = folder / "keys", free_port()
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.tls = [
            "--ssl-ca-certfile", self.keys / "ca.pem",
            "--ssl-certfile", self.keys / "server.pem",
            "--ssl-keyfile", self.keys / "server.key",
        ]  # fmt: skip
        (folder / "flwr").mkdir(exist_ok=True)
        (folder / "flwr" / "config.toml").write_text(
            f'[superlink]\ndefault = "deployment"\n\n[superlink.deployment]\naddress = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.keys / "ca.pem"}"\n'
        )

    def start_superlink(self) -> None:
        """The server's side: the only port that must be open to the nodes."""
        switches = ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        place = ["--port", self.port, "--database", self.folder / "superlink.db"]
        process = self.start("superlink", "flower-superlink", *self.tls, *switches, *place)
        wait_until(lambda: listening(self.port) or process.poll() is not None, time.monotonic() + 60, "the SuperLink")

    def start_node(self, number: int, of: int, attack: str) -> None:
        """Register a node's public key with the SuperLink, and start the node with its private one.

        It attacks only if its own configuration names an attack.
        """
        config = f"partition-id={number} num-partitions={of}" + (f' red-team="{attack}"' if attack else "")
        key = self.keys / f"node{number}"
        self.command("flwr", "supernode", "register", key.with_suffix(".pub"), "deployment")
        self.nodes[number] = self.start(
            f"node{number}", "flower-supernode", "--superlink", f"127.0.0.1:{self.port}",
            "--root-certificates", self.keys / "ca.pem", "--auth-supernode-private-key", key, *self.tls,
            "--port", free_port(), "--node-config", config,
        )  # fmt: skip

    def start_run(self, options: argparse.Namespace) -> subprocess.Popen[bytes]:
        settings = {
            "num-server-rounds": options.rounds,
            "min-nodes": options.nodes - (options.killed >= 0),
            "fraction-evaluate": 0.0,
            "poisoned": options.poisoned,
        }
        config = " ".join(f"{key}={value}" for key, value in settings.items())
        app = shutil.copytree(APP, self.folder / "app", dirs_exist_ok=True)
        if options.red_team:  # the app with the mod, on all nodes
            shutil.copy(HERE / "red_team.py", app / "quickstart" / "client.py")
        wait_until(lambda: self.online() >= options.nodes, time.monotonic() + 120, f"{options.nodes} nodes")
        return self.start("run", "flwr", "run", app, "deployment", "--stream", "--run-config", config)

    def online(self) -> int:
        return self.command("flwr", "supernode", "list", "deployment", "--format", "json").count('"online"')

    def command(self, tool: str, *args: object) -> str:
        command = [str(TOOLS / tool), *map(str, args)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, name: str, tool: str, *args: object) -> subprocess.Popen[bytes]:
        """A process in a group of its own, logging to a file, ended with its children at the end."""
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(
            [str(TOOLS / tool), *map(str, args)],
            env=self.environment, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
        self.stack.callback(end, process)
        return process


def end(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """End a process and those it started, gently first."""
    for number in (how, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            continue
    process.wait(timeout=10)


def rounds_of(folder: Path) -> int:
    """How many rounds the ledger holds."""
    path = folder / "runs" / "ledger.sqlite"
    if not path.is_file():
        return 0
    try:
        with sqlite3.connect(path) as ledger:
            return int(ledger.execute("SELECT COUNT(*) FROM round").fetchone()[0])
    except sqlite3.Error:  # it is being created
        return 0


def wait_until(true: Callable[[], bool], deadline: float, what: str) -> None:
    while not true():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited too long for {what}")
        time.sleep(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def say(text: str) -> None:
    print(f"deploy: {text}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=5, help="how many SuperNodes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--poisoned", type=int, default=1, help="the node whose labels are shifted; -1 for nobody")
    parser.add_argument("--killed", type=int, default=3, help="the node that is killed in round 2; -1 for nobody")
    parser.add_argument(
        "--red-team", type=order, action="append", default=[], metavar="NODE=ATTACK",
        help="a node that attacks, as 1=sign_flip; as often as there are such nodes; see docs/red-team.md",
    )  # fmt: skip
    parser.add_argument("--folder", help="where keys, logs and the workspace go; a temporary folder by default")
    parser.add_argument("--timeout", type=float, default=420.0, help="seconds after which everything is ended")
    options = parser.parse_args()
    options.red_team = dict(options.red_team)
    return options


def order(text: str) -> tuple[int, str]:
    number, _, attack = text.partition("=")
    return int(number), attack


if __name__ == "__main__":
    sys.exit(main())
