"""Modules of the user's own: looked up beside a scenario's file first, then as any other import."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from .errors import ConfigError
from .registry import adopt
from .words import printable

_files: dict[str, Path] = {}  # of the modules that lay in a folder that was given


def load(spec: str, beside: Path | None = None, why: str = "which --import asks for") -> ModuleType:
    """Import the module of ``module``, ``module:thing`` or ``folder/module.py``; then ``module:thing`` is a name.

    It is looked up in the folder ``beside``, by default the current one, and then as any other import. Give only what
    the user has asked for, never what a ledger names.
    """
    name, folder = spec.partition(":")[0], beside or Path()
    if name.endswith(".py"):
        file = folder / name if (folder / name).is_file() else Path(name)
        name, folder = file.stem, file.parent
    folder, first = folder.resolve(), name.partition(".")[0]
    here = next((file for file in (folder / f"{first}.py", folder / first / "__init__.py") if file.is_file()), None)
    if here and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        module = adopt(name)
    except Exception as error:  # somebody else's module may fail in any way
        words = f"{type(error).__name__}: {error}"
        if isinstance(error, ImportError | TypeError | ValueError):
            words = str(error) if here else f"{error}; looked up in {folder} and among the installed modules"
        raise ConfigError(f"cannot import {spec!r}, {why}: {words}") from error
    if here:
        found = getattr(sys.modules[first], "__file__", None)
        if found is None or Path(found).resolve() != here:
            raise ConfigError(
                f"{here} cannot be used: another module {first!r} is already imported from {found}; rename it"
            )
        _files[name] = here
    return module


def options(names: Iterable[str]) -> str:
    """The options that load these modules again; a module that lies in another folder than this one by its file.

    >>> options(["acme_fl", "acme_fl.rules"])
    ' --import acme_fl --import acme_fl.rules'
    """
    given = []
    for name in names:
        file = _files.get(name)
        away = file is not None and file.stem == name and file.parent != Path.cwd()
        given.append(f" --import {shlex.quote(printable(os.path.relpath(file) if file and away else name))}")
    return "".join(given)
