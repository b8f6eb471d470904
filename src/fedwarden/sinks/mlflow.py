"""MLflow: one MLflow run a run, one batch of metrics a round."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from ..core.errors import require
from ..core.registry import register
from ..core.types import RoundRecord
from ..store.ledger import Run
from .data_points import DataPoint, refusals, title

# nothing calls home or prints, and a server that is away holds up a run for seconds, not minutes
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
IDENTITY = "fedwarden.run"
MARK = DataPoint("round", "clients", 0.0).tag  # comes last in every round
STATES = {"done": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


@register("sink", "mlflow")
@dataclass(frozen=True)
class MLflow:
    """Metrics with the round as their step; ``uri`` is a tracking server or database, else MLflow's own setting."""

    uri: str = ""
    experiment: str = "fedwarden"

    def __post_init__(self) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        logging.getLogger("mlflow.store").setLevel(logging.WARNING)  # or it tells of every table it makes
        require("mlflow.tracking", "mlflow", "the sink 'mlflow'")

    def __call__(self, run: Run) -> Experiment:
        return Experiment(import_module("mlflow.tracking").MlflowClient(self.uri or None), self.experiment, run)


class Experiment:
    """The MLflow run that carries a run's identity as a tag, made where there is none."""

    def __init__(self, client: Any, experiment: str, run: Run) -> None:
        self.client, self.entities = client, import_module("mlflow.entities")
        self.began = int(1000 * run.created)
        found = client.get_experiment_by_name(experiment)
        place = found.experiment_id if found else client.create_experiment(experiment)
        name = title(run)
        runs = client.search_runs([place], f"tags.`{IDENTITY}` = '{name}'", max_results=1)
        if runs:
            self.id = runs[0].info.run_id
            client.update_run(self.id, "RUNNING")
        else:
            tags = {IDENTITY: name, "fedwarden.engine": run.engine}
            self.id = client.create_run(place, start_time=self.began, run_name=name, tags=tags).info.run_id
        self.last = max((m.step for m in client.get_metric_history(self.id, MARK)), default=0)

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        # MLflow ignores a metric that it has with the same time, so the time must not depend on when it is sent
        at = self.began + record.round
        metrics = [self.entities.Metric(point.tag, point.value, at, record.round) for point in points]
        text = refusals(record)
        tags = [self.entities.RunTag(f"rejected/{record.round}", text)] if text else []
        self.client.log_batch(self.id, metrics=metrics, tags=tags)
        self.last = record.round

    def close(self, state: str) -> None:
        if state in STATES:
            self.client.set_terminated(self.id, STATES[state])
