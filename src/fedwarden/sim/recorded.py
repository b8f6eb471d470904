"""What a recorded run was: its scenario and its attackers, where it was a simulation. Reading them needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from .. import __version__
from ..core.config import override, parse
from ..core.errors import ConfigError, UnknownName
from ..store.ledger import Run
from .scenario import Scenario

IN_PROCESS, ON_FLOWER = "in-process", "flower-simulation"
SIMULATORS = (IN_PROCESS, ON_FLOWER)  # as they sign their runs; the configuration of both is a scenario


def truth_of(run: Run) -> set[str] | None:
    """The clients that attack in some round of a simulation; None for other runs, and where that cannot be known."""
    scenario, _ = as_known(run)
    if scenario is None:
        return None
    try:
        found, ids = scenario.attackers(), scenario.client_ids
        return {ids[i] for i, attacks in found.items() if any(a.start <= scenario.rounds for a in attacks)}
    except ConfigError:
        return None


def as_known(run: Run) -> tuple[Scenario | None, dict[str, Any]]:
    """The scenario of a simulation as far as this version knows its keys, and the others by their path.

    A configuration is read as data: another version may have written it. None where no scenario can be made of it.
    """
    if run.engine not in SIMULATORS:
        return None, {}
    table, unknown = deepcopy(run.config), dict[str, Any]()
    while True:
        try:
            return Scenario.model_validate(table), unknown
        except ValidationError as error:
            faults = error.errors()
        for fault in faults:
            *parents, last = fault["loc"]
            if fault["type"] != "extra_forbidden":
                return None, unknown
            at: Any = table
            for key in parents:
                at = at[key]
            unknown[".".join(map(str, fault["loc"]))] = at.pop(last)


def recorded_scenario(run: Run, settings: Sequence[str] = (), imports: Sequence[str] = ()) -> Scenario:
    """The scenario of a simulation that is to be played or decided again, with overrides applied; every key is known.

    Nothing that the ledger names is imported, here or by those who run the scenario: its ``imports`` become the modules
    that the user has asked for.
    """
    for table in (run.config, override(run.config, settings)):
        try:
            scenario = parse(Scenario, table)
        except ConfigError as error:
            raise ConfigError(
                f"the configuration of run {run.id}: {error}{by_version(run) if table is run.config else ''}"
            ) from error
    return scenario.model_copy(update={"imports": tuple(imports)})


def by_version(run: Run) -> str:
    """Which version to use for a run that another one recorded; empty for one of this version."""
    version = run.versions.get("fedwarden", __version__)
    return "" if version == __version__ else f"; to replay or resume it use fedwarden {version}, which recorded it"


@contextmanager
def naming_plugins(run: Run) -> Iterator[None]:
    """Where a name is unknown, say which module or version the run had it from, and how to import or use that."""
    try:
        yield
    except UnknownName as error:
        named = run.config.get("imports") or ()
        away = [name for name in named if isinstance(name, str) and name not in sys.modules]
        if not away:
            raise ConfigError(f"{error}{by_version(run)}") from error
        asked = " ".join(f"--import {name if name.replace('.', '').isidentifier() else ascii(name)}" for name in away)
        raise ConfigError(
            f"{error}; run {run.id} had plug-ins that are imported only if you ask: add {asked} if you trust it"
        ) from error
