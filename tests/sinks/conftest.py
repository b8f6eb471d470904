"""A ledger with one short run of known numbers, and a folder of one's own."""

import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from fedwarden.conformance.sinks import HOSTILE as HOSTILE
from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.sinks.alerts import ADDRESS
from fedwarden.store.ledger import Ledger


def round_of(
    t: int,
    clients: Sequence[str],
    rejected: Sequence[tuple[str, str]] = (),
    excluded: Sequence[str] = (),
    metrics: Mapping[str, float] | None = None,
    watches: Sequence[str] = ("near", "far"),
) -> RoundRecord:
    """Client i has the score 10 t + i, half of that as its signal; the last one is flagged by every watch."""
    n = len(clients)
    last = np.arange(n) == n - 1
    scores = 10.0 * t + np.arange(n, dtype=np.float64)
    return RoundRecord(
        t,
        tuple(clients),
        np.full(n, 100.0),
        np.where(last, 0.0, 1.0 / max(1, n - 1)),
        tuple(WatchRecord(name, scores / 2, scores, 10.0 * t + n - 1.5, last) for name in watches),
        last,
        tuple(excluded),
        tuple(Rejection(c, Note.text(why)) for c, why in rejected),
        (),
        {"accuracy": 0.5 + 0.1 * t, "train/loss": 1.0 / t, "broken": math.nan} if metrics is None else metrics,
    )


IDS = tuple("abcd")


def verdict_of(
    t: int, flagged: str = "", excluded: str = "", suspended: str = "", weights: Sequence[float] | None = None
) -> RoundRecord:
    """A round of four clients with one watch, of which some are flagged, out, or suspended."""
    flags = np.array([c in flagged for c in IDS])
    watch = WatchRecord("far", flags * 5.0, flags * 5.0, 2.0, flags, None, {}, "it lies far away")
    kept = np.ones(4) / 4 if weights is None else np.array(weights)
    return RoundRecord(t, IDS, np.ones(4), kept, (watch,), flags, tuple(excluded), suspended=tuple(suspended))


class Target(ThreadingHTTPServer):
    """A server on loopback that keeps what is posted while it is ``well``; else it does as its ``mood`` says."""

    daemon_threads = True

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.bodies: list[Any] = []
        self.asked = 0
        self.mood, self.free = "well", Event()
        Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"

    def told(self, client: str) -> int:
        """How many messages say that a client is excluded."""
        return sum(f"Client {client} was excluded in round" in body["text"] for body in self.bodies)

    def stop(self) -> None:
        self.free.set()
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: Target

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked += 1
        if (mood := self.server.mood) == "hangs":
            self.server.free.wait(30)
            return
        if mood == "drips":  # a header without an end, each byte well within the time that a socket may be silent
            with suppress(OSError):
                while not self.server.free.wait(0.1):
                    self.wfile.write(b"H")
            return
        if mood in ("well", "answers twice"):
            self.server.bodies.append(body)
        for _ in range(1 + (mood == "answers twice")):
            self.send_response({"answers 500": 500, "redirects": 302}.get(mood, 200))
            if mood == "redirects":
                self.send_header("Location", self.server.url)
            self.send_header("Content-Length", "0")
            self.end_headers()

    def do_GET(self) -> None:
        self.server.bodies.append({"text": "fetched"})
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[Target]:
    server = Target()
    monkeypatch.setenv(ADDRESS, server.url)
    yield server
    server.stop()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow takes a second to make its tables."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def database(empty_database: Path, tmp_path: Path) -> str:
    """The address of a database that MLflow may write to."""
    return f"sqlite:///{shutil.copy(empty_database, tmp_path)}"


@pytest.fixture
def ledger(home: Path) -> Iterator[Ledger]:
    with Ledger() as opened:
        yield opened


@pytest.fixture
def run(ledger: Ledger) -> int:
    """Three rounds; in the second a stranger is rejected, in the third 'c' is out for good and not asked."""
    number = ledger.start("demo", "in-process", {}, {})
    ledger.append(number, round_of(1, "abc"))
    ledger.append(number, round_of(2, "abc", rejected=[("stranger", "2 arrays, expected 4")], excluded="c"))
    ledger.append(number, round_of(3, "ab", excluded="c"))
    return number
