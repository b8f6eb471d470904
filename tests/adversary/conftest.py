"""The command line in processes that can be killed: forked from one that has imported everything already."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

import pytest

from states import held

# Starting an interpreter with torch takes seconds; a fork takes none, and runs the same command line.
SERVER = """
import json, os, resource, signal, sys, threading
import sklearn.datasets
import fedwarden.cli.run
from fedwarden.cli import main
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import load_scenario

next(Federation(load_scenario({"train": {"workers": 1, "group": 1}})).play())  # what is imported only by a round
assert len(threading.enumerate()) == 1  # a fork has no other
for line in sys.stdin:
    request = json.loads(line)
    child = os.fork()
    if not child:
        for number, path in enumerate((os.devnull, request["out"], request["err"])):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), number)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever these tests were started under
        for name in ("SIGHUP", "SIGQUIT", "SIGTERM"):
            signal.signal(getattr(signal, name), signal.SIG_IGN if name in request["ignored"] else signal.SIG_DFL)
        for name, value in request["limits"].items():
            if name == "RLIMIT_AS":  # on top of what is mapped already
                value += os.sysconf("SC_PAGE_SIZE") * int(open("/proc/self/statm").read().split()[0])
            resource.setrlimit(getattr(resource, name), (value, value))
        code = 70
        try:
            code = main(request["args"])
        finally:
            try:
                sys.stdout.flush()
            finally:
                os._exit(code)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


Contents = tuple[dict[str, list[dict[str, Any]]], str, Any]
"""The rows of every table, and the name of the last checkpoint with what it holds."""


class Server(NamedTuple):
    """The two ends of the process that forks."""

    stdin: IO[str]
    stdout: IO[str]


class Call:
    """One command in a process of its own."""

    def __init__(
        self,
        server: Server,
        args: Sequence[object],
        folder: Path,
        limits: Mapping[str, int],
        ignored: Sequence[str],
        out: Path | None,
    ) -> None:
        self.server, self.err, self.out = server, folder / "err", out or folder / "out"
        for path in (self.err, self.out):
            if path.is_file():
                path.unlink()
        request = {"args": [str(a) for a in args], "limits": dict(limits), "ignored": list(ignored)}
        print(json.dumps({**request, "out": str(self.out), "err": str(self.err)}), file=server.stdin, flush=True)
        self.pid = int(server.stdout.readline())
        self.code: int | None = None

    def wait(self) -> int:
        if self.code is None:
            self.code = int(self.server.stdout.readline())
        return self.code

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Not waited for yet, so the number is still its own."""
        assert self.code is None
        os.kill(self.pid, number)

    def lines(self) -> list[str]:
        return self.err.read_text().splitlines()


@pytest.fixture(scope="session")
def marker(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A variable of the environment by which processes of these tests are told from others."""
    return f"FEDWARDEN_CACHE={tmp_path_factory.mktemp('cache')}"


@pytest.fixture(scope="session")
def server(marker: str) -> Iterator[Server]:
    name, value = marker.split("=")
    env = {**os.environ, name: value, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "COLUMNS": "200"}
    env.pop("FEDWARDEN_HOME", None)
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )
    assert process.stdin is not None
    assert process.stdout is not None
    yield Server(process.stdin, process.stdout)
    process.stdin.close()
    process.wait(timeout=60)
    process.stdout.close()


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Callable[..., Call]]:
    """Start the command line; what is still running at the end of the test is killed."""
    calls: list[Call] = []

    def begin(
        *args: object, limits: Mapping[str, int] | None = None, ignored: Sequence[str] = (), out: Path | None = None
    ) -> Call:
        calls.append(Call(server, args, tmp_path, limits or {}, ignored, out))
        return calls[-1]

    yield begin
    for call in calls:
        if call.code is None:
            with suppress(ProcessLookupError):
                call.kill()
            call.wait()


@pytest.fixture
def workers_of(marker: str) -> Callable[[], list[int]]:
    """The worker processes of these tests that are alive, from /proc."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc")

    def find() -> list[int]:
        found = []
        for folder in Path("/proc").iterdir():
            try:
                mine = folder.name.isdigit() and marker.encode() in (folder / "environ").read_bytes()
                if mine and b"bootstrap.py" in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # gone meanwhile, or somebody else's
                continue
        return found

    return find


@pytest.fixture
def eventually() -> Callable[..., None]:
    """Wait for a condition; a busy machine may take its time."""

    def wait(condition: Callable[[], object], seconds: float = 90.0) -> None:
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < seconds, "it did not come to that"
            time.sleep(0.01)

    return wait


@pytest.fixture
def committed() -> Callable[[Path], int]:
    """The last round in a workspace's ledger; 0 before there is one."""

    def last(folder: Path) -> int:
        try:
            db = sqlite3.connect(f"file:{folder / 'ledger.sqlite'}?mode=ro", uri=True, timeout=30)
            try:
                return int(db.execute("SELECT COALESCE(MAX(round), 0) FROM round").fetchone()[0])
            finally:
                db.close()
        except sqlite3.Error:  # being created
            return 0

    return last


@pytest.fixture
def contents() -> Callable[..., Contents]:
    """All that a workspace holds of a run but for the time of day and the process: every row, and the last model."""

    def read(folder: Path, run: int = 1) -> Contents:
        db = sqlite3.connect(folder / "ledger.sqlite")
        db.row_factory = sqlite3.Row
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
        dropped = {"created", "finished"}
        rows = {
            table: [{k: row[k] for k in row.keys() if k not in dropped} for row in db.execute(f"SELECT * FROM {table}")]  # noqa: SIM118
            for table in tables
        }
        db.close()
        last = max((folder / "checkpoints" / str(run)).glob("round-*.safetensors"))
        return rows, last.name, held(last)

    return read


@pytest.fixture
def state_of() -> Callable[..., str]:
    def read(folder: Path, run: int = 1) -> str:
        db = sqlite3.connect(folder / "ledger.sqlite")
        try:
            return str(db.execute("SELECT state FROM run WHERE id = ?", (run,)).fetchone()[0])
        finally:
            db.close()

    return read
