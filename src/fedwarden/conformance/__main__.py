"""``python -m fedwarden.conformance rule gesd``: which laws a component keeps and breaks.

``module:function --rule krum`` points the laws of aggregation rules at any function; only torch and NumPy are needed
for that, so that it runs in the environment of the library that it looks at.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, NoReturn

from ..core.errors import ConfigError, nearest
from ..core.registry import FOLDERS, canonical, exemptions, names
from . import check, laws_of
from .law import Finding, examine, table
from .laws import LAWS
from .subject import RULES, Subject, registered

EPILOG = f"""\
KIND is one of {", ".join(FOLDERS)}. A function is called as function(rows, **options): rows is an (n, d) array, the
result has d numbers. It may also take clients as lists of layers and an option num_examples. Exit code 1: a law is
broken; 2: the call was wrong."""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def parser() -> Parser:
    """The options of the command."""
    about = "Point the laws at a registered component, at all of a kind, or at a function."
    made = Parser(prog="python -m fedwarden.conformance", description=about, epilog=EPILOG)
    made.add_argument("target", nargs="?", metavar="KIND|MODULE:FUNCTION", help="left out: every component")
    made.add_argument("name", nargs="?", metavar="NAME", help="one component of the kind; left out: all of them")
    made.add_argument("--import", action="append", default=[], metavar="MODULE", help="import this first; repeatable")
    made.add_argument("--rule", help="the rule that the function claims to be; left out: the laws of all rules")
    made.add_argument("--set", action="append", default=[], metavar="F=2", help="an option to call it with; repeatable")
    made.add_argument(
        "--list", action="store_true", help="show the laws of a kind, or those of functions and the rules"
    )
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


def bring(module: str) -> ModuleType:
    """Import a module of somebody else, which may fail in any way."""
    try:
        return import_module(module)
    except Exception as error:
        raise ConfigError(f"cannot import {module!r}: {error}; run in its environment and its folder") from error


def load(target: str) -> Callable[..., Any]:
    """The function behind ``module:function``."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise ConfigError(f"a function is written module:function; got {target!r}")
    found: Callable[..., Any] | None = getattr(bring(module), name, None)
    if not callable(found):
        known = [key for key, value in vars(import_module(module)).items() if inspect.isfunction(value)]
        raise ConfigError(f"{module!r} has no function {name!r}; {nearest(name, known)}")
    return found


def settings(pairs: Sequence[str]) -> dict[str, object]:
    """Options written ``f=2``; a value is a number where it reads as one.

    >>> settings(["f=2", "limit=0.5", "then=median"])
    {'f': 2, 'limit': 0.5, 'then': 'median'}
    """
    out: dict[str, object] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"an option is written f=2; got {pair!r}")
        out[key] = _number(text)
    return out


def subject(target: str | None, rule: str | None, options: dict[str, object]) -> Subject:
    """What to examine; a function that does not take the rule's options is refused."""
    rule = canonical(rule) if rule else None
    if rule is not None and rule not in RULES and not (target is None and rule in names("aggregator")):
        raise ConfigError(f"there is no rule {rule!r}; {nearest(rule, RULES)}")
    function = load(target) if target else registered(rule or "")
    made = Subject.of(function, rule or "", registered=target is None, **options)
    try:
        inspect.signature(made.function).bind(None, **made.options)
    except TypeError as error:
        call = ", ".join(["rows", *(f"{key}=..." for key in made.options)])
        raise ConfigError(f"{target} cannot be called as function({call}): {error}; wrap it in one that can") from error
    return made


def listing(kind: str | None) -> dict[str, dict[str, str]]:
    """The laws of a kind; else those of functions, and the rules with what they need and are called with."""
    if kind is not None:
        return {f"laws of a {kind}": {law.name: law.says for law in laws_of(kind)}}
    return {
        "laws": {law.name: law.says for law in LAWS},
        "rules": {
            name: rule.needs
            + "".join(f"; {key}={'...' if callable(value) else value}" for key, value in rule.options.items())
            for name, rule in RULES.items()
        },
    }


def plain(findings: Sequence[Finding]) -> list[dict[str, str]]:
    """The findings for JSON."""
    return [{"law": f.law, "status": f.status, "note": f.note} for f in findings]


def on_function(target: str | None, rule: str | None, options: dict[str, object], as_json: bool) -> int:
    """Point the laws of aggregation rules at a function."""
    made = subject(target, rule, options)
    exempt = exemptions("aggregator", made.name) if made.name else {}
    findings = [examine(made, law, exempt) for law in LAWS]
    shown, used = target or f"fedwarden {rule}", {k: v for k, v in made.options.items() if not callable(v)}
    if as_json:
        print(json.dumps({"target": shown, "rule": rule, "options": used, "laws": plain(findings)}, indent=2))
    else:
        words = ", ".join(f"{key}={value}" for key, value in used.items())
        print(f"{shown} as {made.name or 'any rule'}" + (f" with {words}" if words else ""))
        print(table(findings))
    return int(any(f.status == "broken" for f in findings))


def on_components(kind: str | None, name: str | None, options: dict[str, object], as_json: bool) -> int:
    """Point the laws of each kind at one of its components, at all of them, or at those of every kind."""
    if kind is not None and kind not in FOLDERS:
        raise ConfigError(f"there is no kind {kind!r}; {nearest(kind, FOLDERS)}; a function is written module:function")
    if options and name is None:
        raise ConfigError("options are those of one component; name its kind and it before --set")
    todo = [(k, n) for k in ([kind] if kind else FOLDERS) for n in ([name] if name else names(k))]
    reports = []
    for k, n in todo:
        reports.append(check(k, n, **options))
        if not as_json:
            print(reports[-1], flush=True)
    if as_json:
        found = [{"kind": r.kind, "name": r.name, "laws": plain(r.findings)} for r in reports]
        print(json.dumps({"components": found}, indent=2))
    elif len(reports) > 1:
        broken = [f"{r.kind} {r.name} ({', '.join(r.broken)})" for r in reports if r.broken]
        print(f"{len(reports)} components; broken: {'; '.join(broken) or 'none'}")
    return int(any(r.broken for r in reports))


def run(args: Sequence[str] | None = None) -> int:
    """Parse, examine, print."""
    given = parser().parse_args(args)
    for module in getattr(given, "import"):
        bring(module)
    if given.list:
        tables = listing(given.target)
        if given.json:
            print(json.dumps(tables, indent=2))
        else:
            for title, rows in tables.items():
                width = max(map(len, rows))
                print("\n".join([title, *(f"  {key.ljust(width)}  {text}" for key, text in rows.items())]))
        return 0
    options = settings(given.set)
    if given.rule is not None or ":" in (given.target or ""):
        return on_function(given.target, given.rule, options, given.json)
    return on_components(given.target, given.name, options, given.json)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; what a user can cause ends in one line on standard error and exit code 2."""
    try:
        return run(args)
    except ConfigError as error:
        print("error: " + " ".join(str(error).split()), file=sys.stderr)
        return 2


def _number(text: str) -> object:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


if __name__ == "__main__":
    sys.exit(main())
