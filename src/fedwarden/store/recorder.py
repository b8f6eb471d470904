"""The recorder: everything that a run leaves behind while it goes on, whichever engine plays it.

It owns the run's row in the ledger, the lock that makes this process its only writer, its checkpoints and its sinks::

    with Recorder(folder, sinks) as recorder:
        recorder.start(name, engine, config)          # or: recorder.resume(run, config, use)
        for t in rounds:
            record = ...                              # what a round makes of recorder.word(t), with recorder.notes(t)
            recorder.commit(record, state)
            recorder.send()
        recorder.finish(summary)

A checkpoint is written before its round is committed, so that every committed round can be continued from.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import scipy
import torch

from .. import __version__
from ..core.notes import Note
from ..core.types import RoundRecord, Word
from ..core.words import reason
from . import checkpoint
from .claim import claim
from .ledger import Ledger, LedgerError, Run
from .parse import ERROR
from .record import RunRecord
from .word import EARLIER, UNSAID, Kind, latest, notes_of, said_in, say, take_up, word_of

T = TypeVar("T")


class Sinks(Protocol):
    """Whoever is sent the rounds of a run; nothing that happens to them may end it."""

    def open(self, ledger: Ledger, run: int, /) -> None:
        """A run begins, or goes on."""
        ...

    def send(self) -> None:
        """Send what is committed, without a delay."""
        ...

    def close(self, state: str, /) -> None: ...


class Recorder:
    """One run while it is written; leave its context, and the run is marked as what became of it.

    An error inside marks the run failed, an interrupt marks it interrupted, :meth:`finish` marks it done.
    """

    def __init__(self, folder: Path | None = None, sinks: Sinks | None = None, every: int = 1, last: int = 0) -> None:
        """A checkpoint is written ``every`` so many rounds, and in the round ``last``."""
        self.sinks, self.every, self.last = sinks, every, last
        self.ledger = Ledger(folder)
        self.held = ExitStack()
        self.run, self.name = 0, ""  # no run before it is started or resumed
        self.rows = checkpoint.Rows()
        self.ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            cut = isinstance(error, KeyboardInterrupt)
            self.stop("interrupted" if cut else "failed", "" if cut else reason(error))
        self.close()

    def start(
        self, name: str, engine: str, config: Mapping[str, Any], software: Mapping[str, str] | None = None
    ) -> None:
        """Begin a new run; ``software`` are versions beside those that every run depends on.

        Where ``config`` names a run for the clients' ``standing``, what it left is said again in the new one.
        """
        which = config.get("standing") or (config.get("guard") or {}).get("standing")
        left = [] if which is None else standing(self.ledger, which)
        run = self.ledger.start(name, engine, config, {**versions(), **(software or {})})
        self.held.enter_context(claim(self.ledger.folder, run))
        self._begun(self.ledger.run(run))
        for entry in left:
            say(self.ledger, run, *entry)

    def resume(
        self, run: Run, config: Mapping[str, Any], use: Callable[[Any, int], T]
    ) -> tuple[T | None, tuple[Note, ...]]:
        """Continue a run: what ``use`` makes of its newest sound checkpoint, and notes on those passed over.

        None where there is no checkpoint: then all rounds are played again. Where checkpoints exist and none can be
        used, that is an error, and the run stays as it was. From now on the ledger holds this ``config``.
        """
        folder = self.ledger.folder
        self.held.enter_context(claim(folder, run.id))
        made, notes = checkpoint.newest(folder, run.id, run.identity, self.ledger.last_round(run.id), use)
        checkpoint.clear_drafts(folder, run.id)
        self.ledger.reopen(run.id, config)
        self._begun(run)
        return made, notes

    def word(self, round: int, clients: Collection[str] = ()) -> Word:
        """The operator's word in a round that begins, with these ``clients``: what is new of it takes effect."""
        return word_of(take_up(self.ledger, self.run, round, clients), round)

    def notes(self, round: int) -> tuple[Note, ...]:
        """What the operator said that takes effect in a round, to be noted in its record."""
        return notes_of(said_in(self.ledger, self.run), round)

    def commit(self, record: RoundRecord, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write a round, after its checkpoint where one is due; ``state`` is asked only then."""
        folder = self.ledger.folder
        if record.round % self.every == 0 or record.round == self.last:
            path = checkpoint.checkpoint_path(folder, self.run, record.round)
            checkpoint.save(path, dict(state()), self.name, self.rows)
        self.ledger.append(self.run, record)
        checkpoint.forget(folder, self.run, record.round)

    def amend(self, record: RoundRecord, notes: Sequence[Note] = ()) -> RoundRecord:
        """Write a committed round again, with what was learned of it since; the record, with these notes as well."""
        record = replace(record, notes=(*record.notes, *notes))
        self.ledger.append(self.run, record)
        return record

    def send(self) -> None:
        """Send the committed rounds to the sinks, which no round waits for."""
        if self.sinks:
            self.sinks.send()

    def finish(self, summary: Mapping[str, Any] | None = None, error: str | None = None) -> None:
        """The run has played all its rounds: it is done, or failed where they came to nothing, for the ``error``."""
        state = "done" if error is None else "failed"
        self.ledger.finish(self.run, state, summary if error is None else {**(summary or {}), ERROR: error})
        self._end(state)

    def stop(self, state: str, error: str = "") -> None:
        """Note how an unfinished run ended, and why; a full disk leaves it "running", which can be resumed as well."""
        if not self.run or self.ended:
            return
        for _ in range(2):  # a write that broke off may have left a transaction open, which the first attempt then ends
            with suppress(LedgerError):
                self.ledger.finish(self.run, state, {ERROR: error} if error else None)
                break
        self._end(state)

    def close(self) -> None:
        """Let go of the ledger and the lock."""
        self.ledger.close()
        self.held.close()

    def _begun(self, run: Run) -> None:
        self.run, self.name = run.id, run.identity
        if self.sinks:
            self.sinks.open(self.ledger, run.id)

    def _end(self, state: str) -> None:
        self.ended = True
        if self.sinks:
            self.sinks.close(state)


def versions() -> dict[str, str]:
    """What a run's numbers depend on besides its configuration."""
    return {
        "fedwarden": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": platform.machine(),
    }


def standing(ledger: Ledger, which: str | int) -> list[tuple[Kind, str, str, str]]:
    """The clients that are trusted, excluded or suspended at the end of a run, with why, as another run is told it."""
    told = RunRecord.read(ledger, which)
    run, said, word = told.run, told.said, latest(told.said)
    out = {client: s for client, s in told.story.standings.items() if s.out}
    trusted = word.trusted.union(run.config.get("trusted", ()), (run.config.get("guard") or {}).get("trusted") or ())
    back = trusted.union(s.client for s in said if s.kind == "readmit" and s.round is None)
    waits = {s.client for s in said if s.kind == "suspend" and s.round is None}
    suspended = waits.union(c for c, s in out.items() if s.verdict == "suspended") - back - word.excluded
    left: dict[Kind, Collection[str]] = {
        "trust": trusted, "exclude": word.excluded | (out.keys() - back - suspended), "suspend": suspended
    }  # fmt: skip
    entries = {(s.kind, s.client): s for s in said}
    found = list[tuple[Kind, str, str, str]]()
    for kind, client in [(kind, client) for kind, some in left.items() for client in sorted(some)]:
        entry, verdict = entries.get((kind, client)), out.get(client)
        by, why = f"{EARLIER}{run.id}", "trusted by its configuration"
        if entry and entry.carried:
            by, why = entry.by, entry.reason
        elif entry:
            when = "the end" if entry.round is None else f"round {entry.round}"
            why = f"by operator {entry.by} from {when} on: {entry.reason or UNSAID}"
        elif verdict:
            why = f"{verdict} by the guard: {told.story.reason(client)}"
        found.append((kind, client, by, why))
    return found
