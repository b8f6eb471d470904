"""OpenTelemetry and Prometheus: the newest round as gauges, pushed to a collector or for a server to fetch.

Both keep values by the time they come, so of a run that has been only the newest round is sent.
"""

from __future__ import annotations

import logging
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

EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter"


@register("sink", "opentelemetry")
@dataclass(frozen=True)
class OpenTelemetry:
    """Gauges by OTLP; ``endpoint`` is the collector's URL with its path, else that of OTEL_EXPORTER_OTLP_ENDPOINT."""

    endpoint: str = ""
    timeout: float = 5.0

    def __post_init__(self) -> None:
        logging.getLogger(EXPORTER).setLevel(logging.CRITICAL)  # the run itself warns of what fails
        require(EXPORTER, "opentelemetry", "the sink 'opentelemetry'")

    def __call__(self, run: Run) -> Collector:
        exporter = import_module(EXPORTER).OTLPMetricExporter(endpoint=self.endpoint or None, timeout=self.timeout)
        return Collector(exporter, run)


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


def gauges(record: RoundRecord, points: Sequence[DataPoint], run: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """The values of a round with their labels, by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for point in (*points, DataPoint("round", "number", float(record.round))):
        found.setdefault(f"fedwarden.{point.family}", []).append(({"run": run, **point.labels}, point.value))
    return found


class Collector:
    """A collector; the SDK's instruments are passed by, which keep every client ever seen and merge the 2,001st."""

    def __init__(self, exporter: Any, run: Run) -> None:
        self.exporter, self.run, self.last = exporter, title(run), max(0, run.rounds - 1)
        self.data = import_module("opentelemetry.sdk.metrics.export")
        resource = import_module("opentelemetry.sdk.resources").Resource.create({"service.name": "fedwarden"})
        scope = import_module("opentelemetry.sdk.util.instrumentation").InstrumentationScope("fedwarden")
        self.about = (resource, scope)

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        resource, scope = self.about
        now, data = time.time_ns(), self.data
        metrics = [
            data.Metric(
                name, "", "", data.Gauge([data.NumberDataPoint(labels, 0, now, value) for labels, value in found])
            )
            for name, found in gauges(record, points, self.run).items()
        ]
        whole = data.MetricsData([data.ResourceMetrics(resource, [data.ScopeMetrics(scope, metrics, "")], "")])
        if self.exporter.export(whole) is not data.MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not take it; check that it listens at the endpoint")
        self.last = record.round

    def close(self, state: str) -> None:
        self.exporter.shutdown()


class Endpoint:
    """Shows the newest round and forgets those before it, so a client that is gone is gone here too."""

    def __init__(self, options: Prometheus, run: Run) -> None:
        self.library: Any = import_module("prometheus_client")
        self.run, self.last, self.linger = title(run), max(0, run.rounds - 1), options.linger
        self.shown: list[Any] = []
        registry = self.library.CollectorRegistry()
        registry.register(self)
        self.server, self.thread = self.library.start_http_server(options.port, options.host, registry)

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        shown = []
        for dotted, found in gauges(record, points, self.run).items():
            name = dotted.replace(".", "_")
            shown.append(self.library.metrics_core.GaugeMetricFamily(name, name, labels=[*found[0][0]]))
            for labels, value in found:
                shown[-1].add_metric([*labels.values()], value)
        self.shown, self.last = shown, record.round

    def close(self, state: str) -> None:
        time.sleep(self.linger if state != "running" else 0.0)
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks for at every fetch."""
        yield from self.shown
