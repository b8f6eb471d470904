"""Names to factories. An extension is one new file with one decorator.

A file dropped into the folder of its kind is found by itself; a third-party package declares an entry point in
the group ``fedwarden``, or ``fedwarden.KIND``, that names the module to import. In a name ``-`` and ``_`` are the same.
A name ``module:thing`` is what a module has under that name, if the user has asked for that module (:func:`adopt`).
"""

from __future__ import annotations

import dataclasses
import inspect
import logging
import pkgutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from keyword import iskeyword
from multiprocessing import parent_process
from numbers import Integral, Real
from pathlib import Path
from traceback import extract_tb
from types import MappingProxyType, ModuleType, NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import ConfigError, UnknownName, nearest
from .protocols import complete
from .words import listed, printable

LOG = logging.getLogger("fedwarden")
Factory = Callable[..., Any]
Spec = str | Mapping[str, object]
"""What a component is built from: its name, or a table with its ``name`` and its options."""
F = TypeVar("F", bound=Factory)

ASK = "a scenario file that names it imports it, and so does --import"
FOLDERS = {
    "aggregator": "fedwarden.aggregators",
    "attack": "fedwarden.attacks",
    "change": "fedwarden.sim.changes",
    "dataset": "fedwarden.sim.data.sources",
    "history": "fedwarden.history",
    "model": "fedwarden.sim.models",
    "partition": "fedwarden.sim.data.partition",
    "policy": "fedwarden.policies",
    "preset": "fedwarden.guard.presets",
    "rule": "fedwarden.rules",
    "signal": "fedwarden.signals",
    "sink": "fedwarden.sinks",
    "task": "fedwarden.sim.tasks",
}
CALLED = {"rule": ("__call__", "scores", "test"), "signal": ("__call__", "cohort")} | {
    "aggregator": ("step", "state", "cohort", "weights"),
    "history": ("step", "state", "client_ids", "values", "trusted"),
    "policy": ("step", "excluded", "findings"),
}
_entries: dict[str, dict[str, Factory]] = {kind: {} for kind in FOLDERS}
_exempt: dict[tuple[str, str], Mapping[str, str]] = {}
_loading: list[str] = []  # the plug-in that is being imported
_adopted: dict[str, ModuleType] = {}  # modules that the user has asked for


@dataclass(frozen=True)
class BrokenPlugin:
    """An entry point whose module could not be imported."""

    name: str
    distribution: str
    error: str

    def __str__(self) -> str:
        return f"the plug-in {self.name!r} of {self.distribution} cannot be imported ({self.error})"


def canonical(name: str) -> str:
    """The one spelling of a name: ``-`` and ``_`` are the same.

    >>> canonical("pid_made")
    'pid_made'
    """
    return name.replace("-", "_")


def register(kind: str, name: str, exempt: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """Register the decorated factory under a name; a second factory of the same name is refused.

    ``exempt`` declares the laws of :mod:`fedwarden.conformance` that do not hold for it, each with the reason.
    """
    table, name = _table(kind), canonical(name)
    if unclear := [law for law, reason in (exempt or {}).items() if not reason.strip()]:
        raise ConfigError(f"{kind} {name!r} is exempt from the law {unclear[0]!r} without a reason; give one")

    def decorate(factory: F) -> F:
        if _loading:  # a plug-in that takes one of our names is refused, and not we ourselves later on
            _folder(kind)
        present = table.setdefault(name, factory)
        if (present.__module__, present.__qualname__) != (factory.__module__, factory.__qualname__):
            raise ConfigError(f"{kind} {name!r} is already registered by {present.__module__}; choose another name")
        table[name] = complete(kind, factory) if isinstance(factory, type) else factory
        _exempt[kind, name] = MappingProxyType(dict(exempt or {}))
        return factory

    return decorate


def names(kind: str) -> tuple[str, ...]:
    """The registered names of a kind, in alphabetical order."""
    table = _table(kind)
    _discover(kind)
    return tuple(sorted(table))


def adopt(module: str) -> ModuleType:
    """Import a module that the user has asked for; from now on ``module:thing`` names what it has.

    Others' words, such as a ledger's, may name such a thing as well, but never import or use any other module.
    """
    _adopted[module] = import_module(module)
    return _adopted[module]


def blamed(error: BaseException) -> str | None:
    """An error and its place in a module that the user has asked for; None where it came about elsewhere."""
    files = {module.__file__ for module in _adopted.values()}
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename in files]
    told = [f"{type(error).__name__}: {error} ({Path(frame.filename).name}, line {frame.lineno})" for frame in frames]
    return told[-1] if told else None


def lookup(kind: str, name: str) -> Factory:
    """The factory behind a name; an unknown name raises with the nearest one, and with the plug-ins that failed."""
    if ":" in name:
        return _thing(kind, name)
    known = names(kind)
    if canonical(name) not in known:
        failed = "".join(f"; {plugin} and may be what has it" for plugin in broken_plugins(kind))
        raise UnknownName(f"there is no {kind} {name!r}; {nearest(name, known)}{failed}")
    return _entries[kind][canonical(name)]


def exemptions(kind: str, name: str) -> Mapping[str, str]:
    """The laws that a component declares not to keep, with its reasons."""
    lookup(kind, name)
    return _exempt.get((kind, canonical(name)), {})


def make(kind: str, name: str, /, **options: object) -> Any:
    """Build a registered thing; an option it does not have raises with the nearest one."""
    factory = lookup(kind, name)
    known = parameters(factory)
    if missing := [option for option in required(factory) if option not in options]:
        raise ConfigError(f"{kind} {name!r} needs {listed(missing)}: give a default there, or a value in the scenario")
    check_options(kind, name, factory, options, known)
    expected = ""
    try:
        made = complete(kind, factory(**{f"{k}_" if iskeyword(k) else k: v for k, v in options.items()}))
        if ":" in name and kind in CALLED:  # one's own: what it is called with is tried before it is
            method, *given = CALLED[kind]
            expected = f"; expected {method}({', '.join(given)})"
            inspect.signature(getattr(made, method)).bind(*given)
        return made
    except (AttributeError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{kind} {name!r}: {error}{expected}") from error


def check_options(
    kind: str, name: str, factory: Factory, options: Mapping[str, object], known: Collection[str]
) -> None:
    """Refuse an option that is not known, with the nearest one, and a value of another type."""
    for option, value in options.items():
        if option not in known:
            raise ConfigError(f"{kind} {name!r} has no option {option!r}; {nearest(option, known)}")
        if not _fits(value, hint := _hints(factory).get(option)):
            wanted = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
            wanted = wanted.replace("collections.abc.Sequence", "list").replace("collections.abc.Mapping", "table")
            raise ConfigError(f"{kind} {name!r}: option {option!r} is of type {wanted}; got {value!r:.60}")


def component(kind: str, spec: object) -> Any:
    """Build from a name, from a table with a ``name`` and options, or pass a ready-made object through."""
    if isinstance(spec, str):
        return make(kind, spec)
    if isinstance(spec, Mapping):
        options = dict(spec)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise ConfigError(f"a {kind} is a name or a table with a 'name'; got {dict(spec)!r}")
        return make(kind, name, **options)
    if isinstance(spec, type):
        raise ConfigError(f"a {kind} is a name, a table or an object; got a class: write {spec.__name__}()")
    return complete(kind, spec)


def describe(instance: object) -> dict[str, Any]:
    """The table that :func:`component` would build this instance from; what a server lent it is no option."""
    for kind, table in _entries.items():
        for name, factory in table.items():
            if type(instance) is factory and dataclasses.is_dataclass(instance):
                fields = {f.name: getattr(instance, f.name) for f in dataclasses.fields(instance) if f.compare}
                return {"kind": kind, "name": name, **fields}
    return {"kind": "custom", "name": type(instance).__qualname__}


def summary(kind: str, name: str) -> str:
    """The first sentence of the docstring of an entry."""
    return (inspect.getdoc(lookup(kind, name)) or "").split("\n", 1)[0]


@cache
def parameters(factory: Factory) -> Mapping[str, object]:
    """The options of a factory and their defaults; an argument ``class_`` is the option ``class``."""
    found = inspect.signature(factory).parameters.values()
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    fields = dataclasses.fields(factory) if dataclasses.is_dataclass(factory) else ()
    made = {f.name: f.default_factory() for f in fields if f.default_factory is not dataclasses.MISSING}
    return MappingProxyType({p.name.rstrip("_"): made.get(p.name, p.default) for p in found if p.kind in plain})


def required(factory: Factory) -> tuple[str, ...]:
    """The arguments of a factory that have no default.

    >>> required(lambda data, n, rng, share=0.5: None)
    ('data', 'n', 'rng')
    """
    return tuple(name for name, default in parameters(factory).items() if default is inspect.Parameter.empty)


@cache
def _hints(factory: Factory) -> Mapping[str, object]:
    """The types of a factory's options, as far as they can be told."""
    try:
        return {name.rstrip("_"): hint for name, hint in get_type_hints(factory).items()}
    except (NameError, TypeError):
        return {}


def _fits(value: object, hint: object) -> bool:
    """Whether a value is of a plain type, or a list of such values; of other types, whatever is given.

    >>> _fits(3, float), _fits("3", float), _fits(None, float | None), _fits(True, int), _fits("x", tuple)
    (True, False, True, False, True)
    >>> _fits([3, 4], Sequence[int]), _fits(3, Sequence[int]), _fits([3.5], Sequence[int])
    (True, False, False)
    """
    if get_origin(hint) in (Union, UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Sequence:
        return isinstance(value, Sequence) and all(_fits(item, get_args(hint)[0]) for item in value)
    if get_origin(hint) is Mapping:
        return isinstance(value, Mapping) and all(_fits(item, get_args(hint)[1]) for item in value.values())
    if hint in (float, int):
        return isinstance(value, Real if hint is float else Integral) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (bool, str, NoneType) else True


def _thing(kind: str, name: str) -> Factory:
    """A function or class that an adopted module defines; not one that it only imports, as os.system might be."""
    table = _table(kind)
    home, _, thing = name.partition(":")
    if home not in _adopted:
        raise UnknownName(f"there is no {kind} {name!r}: the module {home!r} was not imported; {ASK}")
    package = home.partition(".")[0]
    known: dict[str, Factory] = {
        key: value
        for key, value in vars(_adopted[home]).items()
        if callable(value) and str(getattr(value, "__module__", "")).partition(".")[0] == package
    }
    if thing not in known:
        raise UnknownName(f"{kind} {name!r}: {home!r} defines no function or class {thing!r}; {nearest(thing, known)}")
    table[name] = known[thing]
    return known[thing]


def _table(kind: str) -> dict[str, Factory]:
    if kind not in _entries:
        raise ConfigError(f"there is no kind {kind!r}; {nearest(kind, _entries)}")
    return _entries[kind]


@cache
def _discover(kind: str) -> None:
    _folder(kind)
    broken_plugins(kind)


@cache
def _folder(kind: str) -> None:
    """Import what the package itself has of a kind."""
    package = import_module(FOLDERS[kind])
    for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
        import_module(f"{package.__name__}.{module.name}")


def broken_plugins(kind: str | None = None) -> tuple[BrokenPlugin, ...]:
    """The plug-ins that cannot be imported, of those that may have this kind; the first call imports them."""
    groups = ["fedwarden", *(f"fedwarden.{k}" for k in ([kind] if kind else FOLDERS))]
    return () if _loading else tuple(broken for group in groups for broken in _plugins(group))


@cache
def _plugins(group: str) -> tuple[BrokenPlugin, ...]:
    broken = []
    for entry in entry_points(group=group):
        _loading.append(entry.name)
        try:
            entry.load()
        except Exception as error:  # somebody else's module may fail in any way
            home = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an unknown distribution"
            text = " ".join(f"{type(error).__name__}: {error}".split())
            broken.append(BrokenPlugin(*(printable(part) for part in (entry.name, home, text))))
            if parent_process() is None:  # one line for all processes
                LOG.warning("warning: %s; everything else goes on without it", broken[-1])
        finally:
            _loading.pop()
    return tuple(broken)
