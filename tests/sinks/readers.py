"""What arrived at a target, read with the target's own means: {tag: {round: value}}."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.request import urlopen

from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from prometheus_client.parser import text_string_to_metric_families
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

Series = dict[str, dict[int, float]]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def tensorboard(folder: Path) -> tuple[Series, dict[int, str]]:
    (run,) = folder.iterdir()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    found: Series = {}
    for tag in events.Tags()["scalars"]:
        values = [(e.step, e.value) for e in events.Scalars(tag)]
        assert len(dict(values)) == len(values), f"{tag} has a round twice"
        found[tag] = dict(values)
    texts = {e.step: e.tensor_proto.string_val[0].decode() for t in events.Tags()["tensors"] for e in events.Tensors(t)}
    return found, texts


def mlflow(uri: str, history: bool = True) -> tuple[Series, Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("fedwarden")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    found: Series = {}
    for tag in run.data.metrics if history else ():
        values = [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, tag)]
        assert len(dict(values)) == len(values), f"{tag} has a round twice"
        found[tag] = dict(values)
    return found, run


def samples(url: str) -> Samples:
    """A fetch as Prometheus does it: {(name, labels without the run): value}."""
    with urlopen(url, timeout=5) as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    return {
        (s.name, frozenset((k, v) for k, v in s.labels.items() if k != "run")): s.value
        for family in families
        for s in family.samples
    }


class OtlpServer:
    """A collector on loopback that keeps what it is sent, each request as {(name, labels without the run): value}."""

    def __init__(self) -> None:
        self.requests: list[Samples] = []
        received = self.requests

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                request = ExportMetricsServiceRequest.FromString(self.rfile.read(int(self.headers["Content-Length"])))
                received.append(
                    {
                        (m.name, frozenset((a.key, a.value.string_value) for a in p.attributes if a.key != "run")): (
                            p.as_double
                        )
                        for resource in request.resource_metrics
                        for scope in resource.scope_metrics
                        for m in scope.metrics
                        for p in m.gauge.data_points
                    }
                )
                self.send_response(200)
                self.end_headers()
                self.wfile.write(ExportMetricsServiceResponse().SerializeToString())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1/metrics"

    def __enter__(self) -> OtlpServer:
        Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.server.shutdown()
        self.server.server_close()
