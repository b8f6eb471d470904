"""Prometheus: the newest round as gauges, for a server to fetch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..core.errors import require
from ..core.registry import register
from ..core.types import RoundRecord
from ..store.ledger import Run
from .data_points import DataPoint, title


@register("sink", "prometheus")
@dataclass(frozen=True)
class Prometheus:
    """Gauges at http://host:port/metrics while the run lasts, and ``linger`` seconds longer for a last fetch."""

    host: str = "127.0.0.1"
    port: int = 9464
    linger: float = 0.0

    def __post_init__(self) -> None:
        require("prometheus_client", "prometheus", "the sink 'prometheus'")

    def __call__(self, run: Run) -> Endpoint:
        return Endpoint(self, run)


class Endpoint:
    """Shows the newest round and forgets those before it, so a client that is gone is gone here too."""

    def __init__(self, options: Prometheus, run: Run) -> None:
        self.library: Any = import_module("prometheus_client")
        self.run, self.last, self.linger = title(run), max(0, run.rounds - 1), options.linger
        self.points: Sequence[DataPoint] = ()
        registry = self.library.CollectorRegistry()
        registry.register(self)
        self.server, self.thread = self.library.start_http_server(options.port, options.host, registry)

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        self.points = (*points, DataPoint("round", "number", float(record.round)))
        self.last = record.round

    def close(self, state: str) -> None:
        time.sleep(self.linger if state != "running" else 0.0)
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for at every fetch."""
        families: dict[str, Any] = {}
        for point in self.points:
            labels = {"run": self.run, **point.labels}
            name = "fedwarden_" + point.family.replace(".", "_")
            if name not in families:
                families[name] = self.library.metrics_core.GaugeMetricFamily(name, name, labels=[*labels])
            families[name].add_metric([*labels.values()], point.value)
        yield from families.values()
