"""A Flower run on disk: every round in the ledger, and a checkpoint from which a killed server continues."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..core.notes import Note
from ..core.types import RoundRecord
from ..core.words import printable
from ..guard import journal
from .carried import fingerprints, server_state

LOG = logging.getLogger("flwr")  # beside Flower's own lines
ENGINE = "flower"
PARTS = ("model", "warden", "server")  # of a checkpoint


class Journal(journal.Journal):
    """A server's run on disk, with what its strategy keeps between rounds."""

    def __init__(
        self,
        home: Path | None,
        name: str,
        config: Mapping[str, Any],
        strategy: Strategy,
        resume: bool = False,
        engine: str = ENGINE,
        sinks: Sequence[Any] = (),
    ) -> None:
        self.strategy, self.start = strategy, fingerprints(strategy)
        self.lost: list[str] = []  # attributes of the strategy that no checkpoint carries, each told of once
        super().__init__(home, name, engine, config, PARTS, warn, resume, sinks, {"flwr": version("flwr")})

    def keep(self, record: RoundRecord, model: Mapping[str, Any], guard: Mapping[str, Any]) -> RoundRecord:
        """Write a round with all that continues it; the record, with a note of what cannot be carried.

        ``guard`` are the states of the warden and of the names.
        """
        server, lost = server_state(self.strategy, self.start)
        if new := [name for name in lost if name not in self.lost]:
            self.lost += new
            note = Note.of("state_changed", names=tuple(new))
            warn(str(note))
            record = replace(record, notes=(*record.notes, note))
        state = {"round": record.round, "model": model, **guard, "server": server}
        self.commit(record, {**state, "lost": self.lost} if self.lost else state)
        return record

    def continued(self, state: Mapping[str, Any]) -> Sequence[Note]:
        """What a checkpoint lacks."""
        self.lost = list(state.get("lost", ()))
        return [Note.of("state_fresh", names=tuple(self.lost))] if self.lost else []


def warn(text: str) -> None:
    """One line beside Flower's own; names and words of clients cannot steer the terminal that shows it."""
    LOG.warning("fedwarden: %s", printable(text))
