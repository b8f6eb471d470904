"""A guarded server's run on disk: every round in the ledger, and a checkpoint from which a killed server continues."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..core.notes import Note
from ..core.registry import describe
from ..core.words import listed, printable
from ..sinks.courier import Live
from ..sinks.feed import Feed
from ..store.checkpoint import CheckpointError
from ..store.ledger import LedgerError
from ..store.record import RunRecord
from ..store.recorder import Recorder
from .arrays import Place
from .judge import NAMED
from .warden import Warden

State = Mapping[str, Any]
Say = Callable[[str], None]


class Journal:
    """A server's run on disk; ``state`` is that of the last committed round, if a run is continued.

    Only a run of the same experiment is continued. ``passed_over`` tells of the latest one that was not, and why. The
    guard's draws hang on ``secret``: that of the configuration, or of the run that is continued.
    """

    def __init__(
        self,
        home: Path | None,
        name: str,
        engine: str,
        config: Mapping[str, Any],
        parts: Collection[str],
        say: Say,
        resume: bool = False,
        sinks: Sequence[Any] = (),
        software: Mapping[str, str] | None = None,
    ) -> None:
        """``parts`` are those that every checkpoint of this engine has; ``say`` puts a line into the server's log.

        A new run goes on from the clients' ``standing`` in the one that ``config`` names for it.
        """
        self.parts, self.say = frozenset(parts), say
        self.state: dict[str, Any] | None = None
        self.passed_over = ""
        self.secret: int | None = config.get("secret")
        self.recorder = Recorder(home, Live(Feed.of(sink) for sink in sinks))
        try:
            self._begin(name, engine, config, resume, software)
        except BaseException:
            self.recorder.close()
            raise

    def close(self, state: str, summary: Mapping[str, Any] | None = None, error: str = "") -> list[str]:
        """The run is done, failed for an ``error``, or interrupted.

        Of one that is done, the verdict and how to look at it, for a log.
        """
        try:
            if state == "done":
                self.recorder.finish(summary)
                with suppress(LedgerError):  # what cannot be read again must not cost the run its result
                    return self._look()
            else:
                self.recorder.stop(state, error)
            return []
        finally:
            self.recorder.close()

    def _look(self) -> list[str]:
        ledger, folder = self.recorder.ledger, self.recorder.ledger.folder.resolve()
        where, story = shlex.quote(str(folder)), RunRecord.read(ledger, self.recorder.run, (), ()).story
        return [
            *map(printable, [str(story), *story.closing(self.recorder.run)]),
            f"run {self.recorder.run} is recorded in {folder}; look at it with:",
            f"    fedwarden show {self.recorder.run} --home {where}",
            *([f"    fedwarden dashboard --home {where}"] if find_spec("dash") else []),
        ]

    def tell(self, notes: Sequence[Note]) -> None:
        """Note in the round that a run goes on from what is to be said of it."""
        if self.state is None or not notes:
            return
        self.recorder.amend(self.recorder.ledger.record(self.recorder.run, self.state["round"]), notes)
        for note in notes:
            self.say(printable(str(note)))

    def continued(self, state: State) -> Sequence[Note]:
        """What an engine notes of the checkpoint that a run goes on from."""
        return ()

    def _begin(
        self, name: str, engine: str, config: Mapping[str, Any], resume: bool, software: Mapping[str, str] | None
    ) -> None:
        recorder = self.recorder
        mine = [r for r in recorder.ledger.runs() if r.engine == engine and r.name == name] if resume else []
        unfinished = [r for r in mine if r.state != "done"]
        same = next((r for r in unfinished if not differences(r.config, config)), None)
        if same is not None:
            self.secret = same.config.get("secret", self.secret)
            config = config if self.secret is None else {**config, "secret": self.secret}
            self.state, notes = recorder.resume(same, config, self._checked)
            if self.state is not None:
                self.tell([*notes, *self.continued(self.state)])
            return
        recorder.start(name, engine, config, software)
        if unfinished:
            what = listed(differences(unfinished[0].config, config))
            self.passed_over = (
                f"run {unfinished[0].id} ({name}) is not continued, since it differs in {what}; "
                f"run {self.recorder.run} starts at round 1: give another experiment another name"
            )

    def _checked(self, state: Any, round: int) -> dict[str, Any]:
        """A checkpoint, if it is one of that round."""
        if state["round"] != round or not self.parts <= set(state):
            raise CheckpointError(f"it is of round {state['round']!a}, not of round {round} of a server")
        found: dict[str, Any] = state
        return found


def experiment(
    strategies: Sequence[str], warden: Warden, places: Iterable[Place], buffers: Sequence[str]
) -> dict[str, str]:
    """What must be the same for a run to be continued, each part in one word; the number of rounds may grow."""
    form = [(place.name, place.shape, place.dtype.str) for place in places]
    guard = {
        k: v
        for k, v in options(warden.guard).items()
        if k not in ("watches", "policy", "admission", "secret") and (k not in (*NAMED, "paired", "standing") or v)
    }  # runs of before a key was there go on
    return {
        "strategy": " of ".join(strategies),
        "watches": digest([options(watch) for watch in (*warden.watches, *warden.waiting)]),
        "policy": digest([warden.policy, guard]),
        "aggregator": digest(warden.aggregator),
        "admission": digest(options(warden.admission)),
        "model": digest([form, buffers]),
    }


def kept(warden: Warden) -> dict[str, Any]:
    """What a run records of its guard beside its configuration: what draws hang on, and clients by name."""
    guard = warden.guard
    return {"secret": guard.secret, "trusted": sorted(guard.trusted), "standing": guard.standing}


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
