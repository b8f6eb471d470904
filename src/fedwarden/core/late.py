"""Names of a package that are imported when they are first used, so that nothing is loaded that nobody asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def late(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's ``__getattr__``: the module of the package that each name is in.

    >>> find = late("fedwarden.core", {"errors": ["MissingExtra"]})
    >>> find("MissingExtra").__module__
    'fedwarden.core.errors'
    >>> find("Missing")
    Traceback (most recent call last):
    AttributeError: module 'fedwarden.core' has no attribute 'Missing'
    """
    where = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{where[name]}"), name)

    return find
