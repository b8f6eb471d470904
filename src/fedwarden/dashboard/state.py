"""What the pages know of a workspace: read when its files change, kept until they change again.

Nothing here writes. A run that grows is read from its last known round on.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple, TypeVar

from ..core.types import Observation, RoundRecord
from ..store.claim import is_abandoned
from ..store.connection import logs_of, stamp
from ..store.ledger import Ledger, LedgerError, Run
from ..store.record import RunRecord, brief, read_series
from ..store.series import Series
from ..store.word import Said, said_in

T = TypeVar("T")

PATIENCE = 1.0  # seconds to wait for a locked ledger; the page asks again by itself
SETTLED = 0.2  # seconds after which a file's time tells that it has not changed since it was read
RECENT = 30  # rounds that the overview of all watches shows
ROUNDS = 128  # rounds in full that are kept
KEPT = 24  # values, of which a run of 1,000 clients and 500 rounds takes some 100 MB


class Stamp(NamedTuple):
    """What tells two states of a workspace apart: the ledger's file, its size and time with those of its log, and of
    the runs that are recorded as running those that have no writer any more.
    """

    file: int
    parts: tuple[tuple[int, int], ...]
    gone: tuple[int, ...] = ()


class Kept(NamedTuple):
    stamp: Stamp
    settled: bool
    value: Any


class Workspace:
    """The ledger of a folder; safe to use from many threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._running: list[Run] = []
        self._lock = RLock()
        self.round = lru_cache(ROUNDS)(self._round)

    def briefs(self) -> list[dict[str, Any]]:
        """All runs in short, newest first."""

        def read(ledger: Ledger, old: list[tuple[Run, dict[str, Any]]] | None) -> list[tuple[Run, dict[str, Any]]]:
            known = {run.id: (run, row) for run, row in old or ()}
            runs = ((run, known.get(run.id)) for run in ledger.runs())
            return [kept if kept and kept[0] == run else (run, brief(ledger, run)) for run, kept in runs]

        return [row for _, row in self._read("briefs", read)]

    def run(self, number: int) -> Run:
        """The head of a run."""
        return self._read(("run", number), lambda ledger, _: _find(ledger, number))

    def loudest(self, number: int) -> str | None:
        """The watch that flagged most clients of a run so far."""
        return self._read(("loudest", number), lambda ledger, _: ledger.loudest(number))

    def view(self, number: int, watch: str | None = None) -> RunRecord:
        """A run with one of its watches, the loudest where it has none of that name; with all where none is given."""
        with self._lock:
            if watch is not None and ("view", number, None) not in self._kept:
                names = self._read(("watches", number), lambda ledger, _: ledger.watches(number))
                only = watch if watch in names else self.loudest(number)
            else:
                only = None
            return self._read(("view", number, only), lambda ledger, old: self._grow(ledger, number, only, old))

    def recent(self, number: int) -> Series:
        """The last rounds of a run with all its watches."""
        return self._read(
            ("recent", number),
            lambda ledger, _: read_series(ledger, number, max(ledger.last_round(number) - RECENT, 0), reported=()),
        )

    def records(self, number: int) -> list[RoundRecord]:
        """All rounds of a run in full."""
        return self._read(("records", number), lambda ledger, _: ledger.records(number))

    def _round(self, created: float, number: int, round: int) -> RoundRecord:
        """One round of a run in full; it never changes."""
        with Ledger(self.folder, read_only=True, patience=PATIENCE) as ledger:
            return ledger.record(number, round)

    def observers(self, number: int) -> tuple[str, ...]:
        """The participants whose audits a run has recorded."""
        return self._read(("observers", number), lambda ledger, _: ledger.observers(number))

    def observations(self, number: int, observer: str) -> list[Observation]:
        """What one observer of a run saw."""
        return self._read(("audit", number, observer), lambda ledger, _: ledger.observations(number, observer))

    def said(self, number: int) -> tuple[Said, ...]:
        """What the operator said of a run."""
        return self._read(("said", number), lambda ledger, _: tuple(said_in(ledger, number)))

    def stamp(self) -> Stamp:
        """The state of the ledger's files and of the locks beside it, which costs no look into them."""
        path = self.folder / "ledger.sqlite"
        gone = tuple(run.id for run in self._running if is_abandoned(self.folder, run.id, run.committed))
        try:
            parts = [stamp(part) for part in (path, *logs_of(path))]
            return Stamp(path.stat().st_ino, tuple(part for part in parts if part[0]), gone)  # readers make empty logs
        except OSError:
            return Stamp(0, ())

    def _grow(self, ledger: Ledger, number: int, watch: str | None, old: RunRecord | None) -> RunRecord:
        """The view with the rounds that were committed since."""
        run = _find(ledger, number)
        found = RunRecord.read(ledger, number, None if watch is None else [watch], old=old)
        full = partial(self.round, run.created, number)  # of this run, and no other one that takes its number
        return found if found is old else replace(found, story=replace(found.story, full=full))

    def _read(self, key: Hashable, read: Callable[[Ledger, Any], T]) -> T:
        """A value as it was read last, read again if the ledger has changed since; ``read`` gets the former value."""
        with self._lock:
            stamp, kept = self.stamp(), self._kept.get(key)
            if kept is not None and kept.settled and kept.stamp == stamp:
                self._kept.move_to_end(key)
                return kept.value  # type: ignore[no-any-return]
            old = kept.value if kept is not None and kept.stamp.file == stamp.file else None
            with Ledger(self.folder, read_only=True, patience=PATIENCE) as ledger, ledger.snapshot():
                value, self._running = read(ledger, old), ledger.heads("WHERE state = 'running'")
            newest = max((modified for _, modified in stamp.parts), default=0)
            self._kept[key] = Kept(stamp, time.time_ns() - newest > SETTLED * 1e9, value)
            self._kept.move_to_end(key)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            return value


def _find(ledger: Ledger, number: int) -> Run:
    found = next(iter(ledger.heads("WHERE id = ?", number)), None)
    if found is None:
        raise LedgerError(f"Run {number} does not exist.")
    return found
