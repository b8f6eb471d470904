"""Names of a package that are imported when they are first used, so that nothing is loaded that nobody asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules
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


def modules(package: str) -> Callable[[str], Any]:
    """A package's ``__getattr__``: its modules, so that a command that shows its help, or refuses a file, needs none.

    >>> modules("fedwarden.core")("errors").__name__
    'fedwarden.core.errors'
    """

    def find(name: str) -> Any:
        home = f"{package}.{name}"
        try:
            return import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:
                raise
            raise AttributeError(f"module {package!r} has no attribute {name!r}") from None

    return find


def defined(package: str) -> Callable[[str], Any]:
    """A package's ``__getattr__`` for what one of its modules defines: all of them are imported to find it.

    >>> defined("fedwarden.rules")("GESD").__module__
    'fedwarden.rules.gesd'
    """

    def find(name: str) -> Any:
        for module in () if name.startswith("_") else iter_modules(import_module(package).__path__):
            home = f"{package}.{module.name}"
            found = vars(import_module(home)).get(name)
            if getattr(found, "__module__", None) == home:
                return found
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
