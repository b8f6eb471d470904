"""OpenTelemetry: the newest round as gauges, pushed to a collector by OTLP over HTTP."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
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
        logging.getLogger(EXPORTER).setLevel(logging.CRITICAL)  # what fails is noted in the run
        require(EXPORTER, "opentelemetry", "the sink 'opentelemetry'")

    def __call__(self, run: Run) -> Collector:
        exporter = import_module(EXPORTER).OTLPMetricExporter(endpoint=self.endpoint or None, timeout=self.timeout)
        return Collector(exporter, run)


class Collector:
    """A collector keeps values by the time they come, so of a run that has been only the newest round is sent.

    The SDK's instruments are passed by: they keep every client ever seen, and merge those beyond the 2,000th.
    """

    def __init__(self, exporter: Any, run: Run) -> None:
        self.exporter, self.run, self.last = exporter, title(run), max(0, run.rounds - 1)
        self.data = import_module("opentelemetry.sdk.metrics.export")
        resource = import_module("opentelemetry.sdk.resources").Resource.create({"service.name": "fedwarden"})
        scope = import_module("opentelemetry.sdk.util.instrumentation").InstrumentationScope("fedwarden")
        self.about = (resource, scope)

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        resource, scope = self.about
        scoped = self.data.ScopeMetrics(scope, self._gauges(record, points), "")
        whole = self.data.MetricsData([self.data.ResourceMetrics(resource, [scoped], "")])
        if self.exporter.export(whole) is not self.data.MetricExportResult.SUCCESS:
            raise ConnectionError("the collector did not take it; check that it listens at the endpoint")
        self.last = record.round

    def close(self, state: str) -> None:
        self.exporter.shutdown()

    def _gauges(self, record: RoundRecord, points: Sequence[DataPoint]) -> list[Any]:
        now = time.time_ns()
        families: dict[str, list[Any]] = {}
        for point in (*points, DataPoint("round", "number", float(record.round))):
            labels = {"run": self.run, **point.labels}
            one = self.data.NumberDataPoint(labels, start_time_unix_nano=0, time_unix_nano=now, value=point.value)
            families.setdefault(f"fedwarden.{point.family}", []).append(one)
        return [self.data.Metric(name, "", "", self.data.Gauge(found)) for name, found in families.items()]
