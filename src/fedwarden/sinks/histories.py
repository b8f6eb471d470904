"""MLflow and TensorBoard: every round of a run, as metrics of an MLflow run or as events in a folder."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
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


@register("sink", "tensorboard")
@dataclass(frozen=True)
class TensorBoard:
    """Scalars, and the reasons of rejections as text, for tensorboard --logdir ``folder``."""

    folder: str = "tensorboard"

    def __post_init__(self) -> None:
        require("tensorboard", "tensorboard", "the sink 'tensorboard'")

    def __call__(self, run: Run) -> EventFiles:
        return EventFiles(Path(self.folder) / title(run))


class EventFiles:
    """The event files of a run. A round is one event, so a killed writer leaves a round or nothing of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.last = folder, _last_step(folder)
        self.kit: Any = import_module("torch.utils.tensorboard.summary")
        self.event: Any = import_module("tensorboard.compat.proto.event_pb2").Event
        self.writer: Any = None

    def write(self, record: RoundRecord, points: Sequence[DataPoint]) -> None:
        new = self.kit.Summary.Value
        values = [new(tag=point.tag, simple_value=point.value) for point in points]
        if lines := refusals(record).splitlines():
            verbatim = "\n".join(f"    {line}" for line in lines)  # a block of code, as TensorBoard renders Markdown
            values += self.kit.text("rejected", verbatim).value
        self._append(step=record.round, summary=self.kit.Summary(value=values))
        self.last = record.round

    def close(self, state: str) -> None:
        if self.writer is not None:
            self.writer.close()

    def _append(self, **event: Any) -> None:
        """Write without the thread that PyTorch's writer has, which would not raise what goes wrong here and now."""
        if self.writer is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            file = (self.folder / f"events.out.tfevents.{time.time_ns()}.{os.getpid()}").open("xb")
            self.writer = import_module("tensorboard.summary.writer.record_writer").RecordWriter(file)
            self._append(file_version="brain.Event:2")
        self.writer.write(self.event(wall_time=time.time(), **event).SerializeToString())
        self.writer.flush()


def _last_step(folder: Path) -> int:
    """The newest round in the event files of a folder; what a killed writer left unfinished does not count."""
    load = import_module("tensorboard.backend.event_processing.event_file_loader").EventFileLoader
    return max((event.step for path in folder.glob("events.*") for event in load(str(path)).Load()), default=0)
