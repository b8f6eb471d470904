"""What it costs to send a round to a sink, from the ledger: 100 clients, four watches, 1,612 numbers."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from threading import Thread
from time import perf_counter

import numpy as np
from common import machine

from fedwarden.core.registry import make
from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.sinks.feed import Feed
from fedwarden.store.ledger import Ledger

CLIENTS, WATCHES, ROUNDS = 100, ("evidence", "gross", "direction", "twins"), 20
rng = np.random.default_rng(0)


def record(t: int) -> RoundRecord:
    """A round of random numbers."""
    no = np.zeros(CLIENTS, bool)
    scores = [rng.normal(size=CLIENTS) for _ in WATCHES]
    watches = tuple(WatchRecord(name, s / 2, s, 2.5, no) for name, s in zip(WATCHES, scores, strict=True))
    clients = tuple(str(2**60 + i) for i in range(CLIENTS))  # as long as Flower's
    metrics = {"accuracy": 0.9, "loss": 0.3, "train/loss": 0.2, "evaluate/loss": 0.3}
    return RoundRecord(t, clients, np.full(CLIENTS, 100.0), np.full(CLIENTS, 0.01), watches, no, metrics=metrics)


class Collector(BaseHTTPRequestHandler):
    """Takes everything."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


def main() -> None:
    """Print the cost of every sink."""
    collector = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    Thread(target=collector.serve_forever, daemon=True).start()
    with TemporaryDirectory() as folder, Ledger(Path(folder)) as ledger:
        options = {
            "tensorboard": {"folder": f"{folder}/events"},
            "mlflow": {"uri": f"sqlite:///{folder}/mlflow.db"},
            "opentelemetry": {"endpoint": f"http://127.0.0.1:{collector.server_port}/v1/metrics"},
            "prometheus": {"port": 0},
        }
        for name, own in options.items():
            run, times = ledger.start("bench", "in-process", {}, {}), []
            began = perf_counter()
            feed = Feed(make("sink", name, **own))
            feed.send(ledger, run)
            opening = perf_counter() - began
            for t in range(1, ROUNDS + 1):
                ledger.append(run, record(t))
                began = perf_counter()
                feed.send(ledger, run)
                times.append(perf_counter() - began)
            feed.close("done")
            print(f"{name:<14} opened in {opening:5.2f} s, then {1000 * median(times):6.1f} ms a round")
    print(machine())


if __name__ == "__main__":
    main()
