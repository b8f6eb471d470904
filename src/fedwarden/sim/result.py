"""What a run in a program gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ..core.errors import FedwardenError
from ..core.types import RoundRecord
from ..core.words import count
from ..store.story import Story
from .metrics import Detection


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its number, its rounds, how the guard did, and the model as it is now.

    ``unchanged`` says why no round changed the model, where none did: such a run is recorded as failed.
    """

    run: int
    name: str
    records: list[RoundRecord]
    detection: Detection
    summary: dict[str, Any]
    params: Tensor
    model: nn.Module
    unchanged: str | None = None

    def __repr__(self) -> str:
        return f"run {self.run}, {self.name}: {Story.of(self.records)}"


class Fruitless(FedwardenError):
    """A run in which no round changed the model."""

    @classmethod
    def of(cls, result: Result) -> Fruitless:
        many = count(len(result.records), "round")
        return cls(f"run {result.run} failed: none of its {many} changed the model; in the last, {result.unchanged}")
