"""TensorBoard: one folder a run, one event a round."""

from __future__ import annotations

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
            verbatim = "\n".join(
                f"    {line}" for line in lines
            )  # TensorBoard renders Markdown; this is a block of code
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
