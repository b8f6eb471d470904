"""The errors a user can cause; every message says what happened, what was expected and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class FedwardenError(Exception):
    """Base of all errors that the command line reports in one line with exit code 2."""


class ConfigError(FedwardenError, ValueError):
    """A configuration, an option or a name that cannot be used."""


class MissingExtra(FedwardenError, ImportError):
    """An optional dependency is needed and not installed."""


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
