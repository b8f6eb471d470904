"""Checks the laws that every component keeps, ours or a plug-in's.

``check(kind, name)`` in Python, ``python -m fedwarden.conformance`` on the command line. The laws of a kind stand in
the module of its name. Those of aggregation rules can also be pointed at any other library's function.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from ..core.errors import ConfigError, nearest
from ..core.registry import FOLDERS, canonical, exemptions, lookup, parameters
from . import component
from .component import Component
from .law import CannotTell, Finding, Law, Report, examine, line

__all__ = ["Finding", "Law", "Report", "check", "laws_of"]

HOMES = {  # kind: the module of its laws, imported when it is asked for: some need more than torch and NumPy
    "aggregator": "aggregators",
    "attack": "attacks",
    "change": "changes",
    "dataset": "datasets",
    "history": "histories",
    "model": "models",
    "partition": "partitions",
    "policy": "policies",
    "preset": "presets",
    "rule": "rules",
    "signal": "signals",
    "sink": "sinks",
    "task": "tasks",
}


def laws_of(kind: str) -> tuple[Law, ...]:
    """The laws of a kind."""
    if kind not in FOLDERS:
        raise ConfigError(f"there is no kind {kind!r}; {nearest(kind, FOLDERS)}")
    return (*component.laws_of(kind), *import_module(f".{HOMES[kind]}", __name__).LAWS)


def check(kind: str, name: str, /, **options: object) -> Report:
    """Point every law of a kind at one registered component, with options other than its defaults where given.

    >>> check("rule", "offset").excused
    {'scaling': 'the limit is in the unit of the score'}
    >>> check("rule", "gesd").broken
    {}
    """
    laws, name = laws_of(kind), canonical(name)
    exempt = exemptions(kind, name)
    if strange := set(exempt) - {law.name for law in laws}:
        law = min(strange)
        raise ConfigError(
            f"{kind} {name!r} is exempt from {law!r}, which is not among the laws of its kind; "
            f"{nearest(law, [known.name for known in laws])}"
        )
    known = parameters(lookup(kind, name))
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(f"{kind} {name!r} has no option {unknown[0]!r}; {nearest(unknown[0], known)}")
    it, of_all = Component(kind, name, options), component.laws_of(kind)
    first = [examine(it, law, exempt) for law in of_all]
    return Report(kind, name, (*first, *_of_kind(it, laws[len(of_all) :], exempt)))


def _of_kind(it: Component, laws: tuple[Law, ...], exempt: Mapping[str, str]) -> list[Finding]:
    """The findings of the kind's own laws; one that cannot be built breaks the law that it can be."""
    try:
        subject = import_module(f".{HOMES[it.kind]}", __name__).subject(it)
    except CannotTell as reason:
        return [Finding("built", "cannot tell", str(reason)), *_unknown(laws, exempt, str(reason))]
    except Exception as error:
        fault = f"expected the {it.kind}; got {type(error).__name__}: {line(error)}"
        return [Finding("built", "broken", fault), *_unknown(laws, exempt, "it cannot be built")]
    return [Finding("built", "kept"), *(examine(subject, law, exempt) for law in laws)]


def _unknown(laws: tuple[Law, ...], exempt: Mapping[str, str], reason: str) -> list[Finding]:
    return [
        Finding(law.name, "excused", exempt[law.name])
        if law.name in exempt
        else Finding(law.name, "cannot tell", reason)
        for law in laws
    ]
