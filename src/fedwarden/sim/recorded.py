"""What a recorded run was: its scenario and its attackers, where it was a simulation. Reading them needs no torch."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from .. import __version__
from ..audit.answer import Answer, answer_of
from ..core.config import override, parse
from ..core.errors import ConfigError, UnknownName
from ..core.plugins import options
from ..core.words import count
from ..store.ledger import Run
from .scenario import Scenario

IN_PROCESS, ON_FLOWER = "in-process", "flower-simulation"
SIMULATORS = (IN_PROCESS, ON_FLOWER)  # as they sign their runs; the configuration of both is a scenario
AUDIT = "audit"  # as an audit of a planned change signs its run


def answered(run: Run) -> Answer | None:
    """What an audit of a planned change found, where it came to its end."""
    if run.engine != AUDIT or "answer" not in run.summary:
        return None
    try:
        return answer_of(run.summary["answer"])
    except ValidationError as error:
        raise ConfigError(f"run {run.id}: its answer cannot be read{by_version(run)}") from error


def unanswered(run: Run) -> list[str]:
    """How far an audit came that has no answer, and how to continue it; nothing of other runs."""
    if run.engine != AUDIT or "answer" in run.summary:
        return []
    done = count(len(run.summary.get("seeds") or ()), "seed")
    again = f"continue with: fedwarden audit FILE --resume {run.id}"
    return [f"The audit has played {done} and has no answer yet; {again}."]


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
            last = by_version(run) if table is run.config else ""
            raise ConfigError(f"{last}the configuration of run {run.id}: {error}") from error
    return scenario.model_copy(update={"imports": tuple(imports)})


def by_version(run: Run) -> str:
    """Which version to use for a run that another one recorded, before what is wrong; empty for one of this version."""
    version = run.versions.get("fedwarden", __version__)
    return "" if version == __version__ else f"use fedwarden {version}, which recorded it, to replay or resume it; "


def plugins_of(run: Run) -> list[str]:
    """The modules that a run had; a ledger may hold anything there."""
    return [name for name in run.config.get("imports") or () if isinstance(name, str)]


@contextmanager
def naming_plugins(run: Run) -> Iterator[None]:
    """Where a name is unknown, say which module or version the run had it from, and how to import or use that."""
    try:
        yield
    except UnknownName as error:
        away = [name for name in plugins_of(run) if name not in sys.modules]
        if not away:
            raise ConfigError(f"{by_version(run)}{error}") from error
        raise ConfigError(
            f"{error}; run {run.id} had plug-ins that are imported only if you ask: add{options(away)} if you trust it"
        ) from error
