"""A Flower run on disk: every round in the ledger, and a checkpoint from which a killed server continues."""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flwr.serverapp.strategy import Strategy

from ..core.notes import Note
from ..core.registry import describe
from ..core.types import RoundRecord
from ..core.words import listed, printable
from ..guard.warden import Warden
from ..sinks.feed import Feed, Live
from ..store.checkpoint import CheckpointError
from ..store.recorder import Recorder
from ..store.series import Series
from ..store.verdict import verdict
from .carried import fingerprints, server_state
from .records import Template

LOG = logging.getLogger("flwr")  # beside Flower's own lines
ENGINE = "flower"


class Journal:
    """A server's run on disk; ``state`` is that of the last committed round, if a run is continued.

    Only a run of the same experiment is continued. ``passed_over`` tells of the latest one that was not, and why.
    """

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
        self.state: dict[str, Any] | None = None
        self.passed_over = ""
        self.lost: list[str] = []  # attributes of the strategy that no checkpoint carries, each told of once
        self.recorder = Recorder(home, Live(Feed.of(sink) for sink in sinks))
        try:
            self._begin(name, engine, config, resume)
        except BaseException:
            self.recorder.close()
            raise

    @property
    def run(self) -> int:
        return self.recorder.run

    def commit(self, record: RoundRecord, model: Mapping[str, Any], warden: Mapping[str, Any]) -> RoundRecord:
        """Write a round with all that continues it; the record, with a note of what cannot be carried."""
        server, lost = server_state(self.strategy, self.start)
        if new := [name for name in lost if name not in self.lost]:
            self.lost += new
            note = Note.of("state_changed", names=tuple(new))
            LOG.warning("fedwarden: %s", printable(str(note)))
            record = replace(record, notes=(*record.notes, note))
        state = {"round": record.round, "model": model, "warden": warden, "server": server}
        self.recorder.commit(record, lambda: {**state, "lost": self.lost} if self.lost else state)
        return record

    def amend(self, record: RoundRecord) -> None:
        """Write the record of a committed round again, with what was learned of it since."""
        self.recorder.amend(record)

    def send(self) -> Sequence[Note]:
        """Send committed rounds that will not be amended any more to the sinks; what is to be noted of it."""
        return self.recorder.send()

    def close(self, state: str, summary: Mapping[str, Any] | None = None) -> None:
        """The run is done, failed or interrupted."""
        try:
            if state == "done":
                self.recorder.finish(summary)
                self._look()
            else:
                self.recorder.stop(state)
        finally:
            self.recorder.close()

    def _look(self) -> None:
        """Log who was excluded or stood out, where that is recorded, and how to look at it."""
        ledger = self.recorder.ledger
        LOG.info("fedwarden: %s", printable(str(verdict(Series.of(ledger.records(self.run))))))
        LOG.info("fedwarden: run %d is recorded in %s; look at it with:", self.run, ledger.folder)
        where = shlex.quote(str(ledger.folder))
        LOG.info("fedwarden:     fedwarden show %d --home %s", self.run, where)
        LOG.info("fedwarden:     fedwarden dashboard --home %s", where)

    def _begin(self, name: str, engine: str, config: Mapping[str, Any], resume: bool) -> None:
        recorder = self.recorder
        mine = [r for r in recorder.ledger.runs() if r.engine == engine and r.name == name] if resume else []
        unfinished = [r for r in mine if r.state != "done"]
        same = next((r for r in unfinished if not differences(r.config, config)), None)
        if same is not None:
            self.state, notes = recorder.resume(same, config, _checked)
            self._continue(notes)
            return
        recorder.start(name, engine, config, {"flwr": version("flwr")})
        if unfinished:
            what = listed(differences(unfinished[0].config, config))
            self.passed_over = (
                f"run {unfinished[0].id} ({name}) is not continued, since it differs in {what}; "
                f"run {self.run} starts at round 1: give another experiment another name"
            )

    def _continue(self, notes: Sequence[Note]) -> None:
        """Note in the round that the run goes on from what was passed over, and what its checkpoint lacks."""
        if self.state is None:
            return
        self.lost = lost = list(self.state.get("lost", ()))
        told = [*notes, *([Note.of("state_fresh", names=tuple(lost))] if lost else [])]
        if told:
            record = self.recorder.ledger.record(self.run, self.state["round"])
            self.recorder.amend(record, told)
            for note in told:
                LOG.warning("fedwarden: %s", printable(str(note)))


def experiment(strategies: Sequence[str], warden: Warden, template: Template) -> dict[str, str]:
    """What must be the same for a run to be continued, each part in one word; the number of rounds may grow."""
    form = [(slot.name, slot.shape, slot.dtype.str) for slot in template.slots]
    guard = {k: v for k, v in options(warden.guard).items() if k not in ("watches", "policy", "admission")}
    return {
        "strategy": " of ".join(strategies),
        "watches": digest([options(watch) for watch in (*warden.watches, *warden.waiting)]),
        "policy": digest([warden.policy, guard]),
        "aggregator": digest(warden.aggregator),
        "admission": digest(options(warden.admission)),
        "model": digest([form, template.buffers]),
    }


def differences(recorded: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The parts of the experiment in which a recorded run differs from the one that starts."""
    then = recorded.get("experiment", {})
    return [part for part, value in now.get("experiment", {}).items() if then.get(part) != value]


def digest(value: Any) -> str:
    """A short text that differs where names, options or numbers do; what a server lent a component does not count."""

    def plain(part: Any) -> Any:
        return sorted(part) if isinstance(part, set | frozenset) else describe(part)

    return sha256(json.dumps(value, default=plain, sort_keys=True).encode()).hexdigest()[:16]


def options(value: Any) -> dict[str, Any]:
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _checked(state: Any, round: int) -> dict[str, Any]:
    """A checkpoint, if it is one of that round."""
    if state["round"] != round or not {"model", "warden", "server"} <= set(state):
        raise CheckpointError(f"it is of round {state['round']!a}, not of round {round} of a server")
    found: dict[str, Any] = state
    return found
