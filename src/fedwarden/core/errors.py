"""The errors a user can cause; every message says what happened, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from types import ModuleType
from typing import Any, get_args


class FedwardenError(Exception):
    """Base of all errors that the command line reports in one line with exit code 2."""


class ConfigError(FedwardenError, ValueError):
    """A configuration, an option or a name that cannot be used."""


class UnknownName(ConfigError):
    """A name that nothing is registered under; a plug-in may not have been imported."""


class MissingExtra(FedwardenError, ImportError):
    """An optional dependency is needed and not installed."""


def require(module: str, extra: str, user: str) -> ModuleType:
    """An optional module; where it cannot be imported, what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        install = f"install it with: pip install 'fedwarden[{extra}]'"
        raise MissingExtra(f"{user} needs {module}, which cannot be imported ({error}); {install}") from error


def one_of(name: str, value: object, kind: Any) -> None:
    """Refuse an option that is none of the values of a Literal type."""
    *first, last = map(repr, get_args(kind))
    if value not in get_args(kind):
        raise ValueError(f"{name} is {', '.join(first)} or {last}; got {value!r}")


def returned(fits: bool, expected: str, found: object) -> None:
    """Refuse what a component of a user's own may return.

    >>> returned(False, "a rule returns a fedwarden.Verdict", True)
    Traceback (most recent call last):
        ...
    fedwarden.core.errors.ConfigError: a rule returns a fedwarden.Verdict; got True
    """
    if not fits:
        raise ConfigError(f"{expected}; got {found!r:.60}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the closest known name, or lists what there is.

    >>> nearest("limt", ["limit", "alpha"])
    "did you mean 'limit'?"
    >>> nearest("zzz", ["limit", "alpha"])
    'known: alpha, limit'
    """
    known = sorted(known)
    close = get_close_matches(name, known, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "known: " + (", ".join(known) or "none")
