"""What a recorded run was: its guard, its attackers where it was a simulation, and what another guard makes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ..core.config import override, parse
from ..core.errors import ConfigError, UnknownName
from ..core.types import RoundRecord
from ..guard.config import GuardConfig, alter
from ..guard.replay import find_sources, replay
from ..guard.warden import Warden
from ..store.ledger import Run
from .metrics import detection
from .scenario import Scenario

IN_PROCESS, ON_FLOWER = "in-process", "flower-simulation"
SIMULATORS = (IN_PROCESS, ON_FLOWER)  # as they sign their runs; the configuration of both is a scenario


def truth_of(run: Run) -> set[str] | None:
    """The attackers, where the run was a simulation; nobody knows otherwise."""
    return {str(i) for i in recorded_scenario(run).attackers()} if run.engine in SIMULATORS else None


def recorded_scenario(run: Run, settings: Sequence[str] = (), imports: Sequence[str] = ()) -> Scenario:
    """The scenario of a simulation, with overrides applied.

    Nothing that the ledger names is imported, here or by those who run the scenario: its ``imports`` become the modules
    that the user has asked for.
    """
    try:
        scenario = parse(Scenario, override(run.config, settings))
    except ConfigError as error:
        raise ConfigError(f"the configuration of run {run.id}: {error}") from error
    return scenario.model_copy(update={"imports": tuple(imports)})


@contextmanager
def naming_plugins(run: Run) -> Iterator[None]:
    """Where a name is unknown, say which module the run had it from, and how to import that if one trusts it."""
    try:
        yield
    except UnknownName as error:
        named = run.config.get("imports") or ()
        away = [name for name in named if isinstance(name, str) and name not in sys.modules]
        if not away:
            raise
        asked = " ".join(f"--import {name if name.replace('.', '').isidentifier() else ascii(name)}" for name in away)
        raise ConfigError(
            f"{error}; run {run.id} had plug-ins that are imported only if you ask: add {asked} if you trust it"
        ) from error


def recorded_guard(run: Run) -> Warden:
    """The guard of a simulation, or of another engine's run where its configuration has a [guard] table."""
    with naming_plugins(run):
        if run.engine in SIMULATORS:
            return recorded_scenario(run).guard.build()
        if "guard" not in run.config:
            raise ConfigError(
                f"run {run.id} was recorded by {run.engine!r} without a [guard] table; it cannot be replayed"
            )
        return parse(GuardConfig, run.config["guard"]).build()


def decide_again(
    run: Run, records: Sequence[RoundRecord], settings: Sequence[str] = (), preset: str | None = None
) -> tuple[Warden, list[RoundRecord]]:
    """Another guard, the recorded one or a preset with other settings ``a.b=c``, and the rounds as it judges them."""
    if not records:
        raise ConfigError(f"run {run.id} has no recorded rounds to replay")
    seen = {w.name for record in records for w in record.watches}
    recorded = recorded_guard(run).include(seen)
    if not recorded.watches:
        raise ConfigError(
            f"run {run.id} recorded no signals, because its guard watches nothing; run it again with a preset that "
            "watches, and with guard.policy=observe to exclude nobody"
        )
    of_preset = [s for s in settings if s.partition("=")[0].split(".")[0].strip() == "options"]
    if of_preset and not preset:
        raise ConfigError(f"{of_preset[0]!r} is for a preset; name it as well, as in --preset auto")
    other = parse(GuardConfig, override({"preset": preset}, of_preset)).build() if preset else recorded
    warden = alter(other.include(seen), [s for s in settings if s not in of_preset])
    return warden, replay(records, warden, find_sources(recorded.watches, warden.watches))


@dataclass(frozen=True)
class Change:
    """When a client was excluded in the recorded run, and when in the replay; None = never."""

    client: str
    recorded: int | None
    replayed: int | None
    unseen_from: int | None
    """The first round of which nothing is known, because the recorded run no longer asked this client."""


def compare(recorded: Sequence[RoundRecord], replayed: Sequence[RoundRecord]) -> list[Change]:
    """Every client of the run, in order of appearance, before and after."""
    before, after = (detection(records, {}).first_excluded for records in (recorded, replayed))
    seen = {c: r.round for r in recorded for c in r.client_ids}
    last = recorded[-1].round if recorded else 0
    return [
        Change(c, before.get(c), after.get(c), t + 1 if c in before and t < last else None) for c, t in seen.items()
    ]
