"""What a recorded run was: its scenario and its attackers, where it was a simulation. Reading them needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.config import override, parse
from ..core.errors import ConfigError, UnknownName
from ..store.ledger import Run
from .scenario import Scenario

IN_PROCESS, ON_FLOWER = "in-process", "flower-simulation"
SIMULATORS = (IN_PROCESS, ON_FLOWER)  # as they sign their runs; the configuration of both is a scenario


def truth_of(run: Run) -> set[str] | None:
    """The clients that attack in some round of a simulation; None for other runs."""
    if run.engine not in SIMULATORS:
        return None
    scenario = recorded_scenario(run)
    found, ids = scenario.attackers(), scenario.client_ids
    return {ids[i] for i, attacks in found.items() if any(a.start <= scenario.rounds for a in attacks)}


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
