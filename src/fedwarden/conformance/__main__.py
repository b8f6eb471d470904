"""``python -m fedwarden.conformance module:function --rule krum``: which laws a function keeps and breaks.

Only torch and NumPy are needed, so that it runs in the environment of the library that it looks at.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from ..core.errors import ConfigError, nearest
from ..core.registry import names
from .laws import LAWS, Finding, examine
from .subject import RULES, Subject, registered

EPILOG = """\
The function is called as function(rows, **options): rows is an (n, d) array, the result has d numbers. It may also take
clients as lists of layers and an option num_examples. Exit code 1: a law is broken; 2: the call was wrong."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def parser() -> Parser:
    """The options of the command."""
    made = Parser(prog="python -m fedwarden.conformance", description="Point the laws at a function.", epilog=EPILOG)
    made.add_argument("target", nargs="?", metavar="MODULE:FUNCTION", help="left out: fedwarden's own rule")
    made.add_argument("--rule", help="the rule that the function claims to be; left out: the laws of all rules")
    made.add_argument("--set", action="append", default=[], metavar="F=2", help="an option to call it with; repeatable")
    made.add_argument("--list", action="store_true", help="show the laws and the rules")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def load(target: str) -> Callable[..., Any]:
    """The function behind ``module:function``."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"a function is written module:function; got {target!r}")
    try:
        found: Callable[..., Any] | None = getattr(import_module(module), name, None)
    except Exception as error:  # a module of somebody else may fail in any way
        raise ConfigError(f"cannot import {module!r}: {error}; run in its environment and its folder") from error
    if not callable(found):
        known = [key for key, value in vars(import_module(module)).items() if inspect.isfunction(value)]
        raise ConfigError(f"{module!r} has no function {name!r}; {nearest(name, known)}")
    return found


def settings(pairs: Sequence[str]) -> dict[str, Any]:
    """Options written ``f=2``; a value is a number where it reads as one.

    >>> settings(["f=2", "limit=0.5", "then=median"])
    {'f': 2, 'limit': 0.5, 'then': 'median'}
    """
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"an option is written f=2; got {pair!r}")
        out[key] = _number(text)
    return out


def subject(target: str | None, rule: str | None, options: dict[str, Any]) -> Subject:
    """What to examine; a function that does not take the rule's options is refused."""
    if rule is not None and rule not in RULES and not (target is None and rule in names("aggregator")):
        raise ConfigError(f"there is no rule {rule!r}; {nearest(rule, RULES)}")
    if target is None and rule is None:
        raise ConfigError("nothing to examine; expected module:function, --rule NAME, or both (see --list)")
    made = Subject.of(load(target) if target else registered(rule or ""), rule or "", **options)
    try:
        inspect.signature(made.function).bind(None, **made.options)
    except TypeError as error:
        call = ", ".join(["rows", *(f"{key}=..." for key in made.options)])
        raise ConfigError(f"{target} cannot be called as function({call}): {error}; wrap it in one that can") from error
    return made


def report(target: str, made: Subject, findings: Sequence[Finding]) -> str:
    """The findings as a table, with a line that counts them."""
    counted = {status: sum(f.status == status for f in findings) for status in ("kept", "broken", "n/a")}
    options = ", ".join(f"{key}={value}" for key, value in made.options.items() if not callable(value))
    head = f"{target} as {made.name or 'any rule'}" + (f" with {options}" if options else "")
    width = max(len(f.law) for f in findings)
    lines = [f"  {f.law.ljust(width)}  {f.status.ljust(6)}  {f.note}".rstrip() for f in findings]
    tail = f"{counted['kept']} kept, {counted['broken']} broken, {counted['n/a']} not applicable"
    return "\n".join([head, *lines, tail])


def listing() -> dict[str, dict[str, str]]:
    """The laws with their sentences, and the rules with what they need and the options they are called with."""
    return {
        "laws": {law.name: law.says for law in LAWS},
        "rules": {
            name: rule.needs
            + "".join(f"; {key}={'...' if callable(value) else value}" for key, value in rule.options.items())
            for name, rule in RULES.items()
        },
    }


def run(args: Sequence[str] | None = None) -> int:
    """Parse, examine, print."""
    given = parser().parse_args(args)
    if given.list:
        tables = listing()
        if given.json:
            print(json.dumps(tables, indent=2))
        else:
            for title, table in tables.items():
                width = max(map(len, table))
                print("\n".join([title, *(f"  {key.ljust(width)}  {text}" for key, text in table.items())]))
        return 0
    made = subject(given.target, given.rule, settings(given.set))
    findings = [examine(made, law) for law in LAWS]
    target = given.target or f"fedwarden {given.rule}"
    broken = any(f.status == "broken" for f in findings)
    if given.json:
        options = {key: value for key, value in made.options.items() if not callable(value)}
        laws = [{"law": f.law, "status": f.status, "note": f.note} for f in findings]
        print(json.dumps({"target": target, "rule": given.rule, "options": options, "laws": laws}, indent=2))
    else:
        print(report(target, made, findings))
    return 1 if broken else 0


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; what a user can cause ends in one line on standard error and exit code 2."""
    try:
        return run(args)
    except ConfigError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


def _number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    sys.exit(main())
