"""``python -m fedwarden_research.conformance module:function --rule krum``: which laws of a rule a function keeps.

Only torch and NumPy are needed, so that it runs in the environment of the library that it looks at.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from fedwarden.conformance import __main__ as components
from fedwarden.conformance.__main__ import Parser, settings, show
from fedwarden.conformance.law import examine, table
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import Subject, registered
from fedwarden.core import plugins
from fedwarden.core.errors import ConfigError, nearest
from fedwarden.core.registry import canonical, exemptions, names

from .rules import RULES, subject_of

EPILOG = """\
A function is called as function(rows, **options): rows is an (n, d) array, the result has d numbers. It may also take
clients as lists of layers and an option num_examples. Exit code 1: a law is broken; 2: the call was wrong."""


def parser() -> Parser:
    """The options of the command."""
    about = "Point the laws of aggregation rules at a function, or at a rule of fedwarden."
    made = Parser(prog="python -m fedwarden_research.conformance", description=about, epilog=EPILOG)
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
    home = plugins.load(module, why="which the target names")
    found: Callable[..., Any] | None = getattr(home, name, None)
    if not callable(found):
        known = [key for key, value in vars(home).items() if inspect.isfunction(value)]
        raise ConfigError(f"{module!r} has no function {name!r}; {nearest(name, known)}")
    return found


def subject(target: str | None, rule: str | None, options: dict[str, object]) -> Subject:
    """What to examine; a function that does not take the rule's options is refused."""
    rule = canonical(rule) if rule else None
    if rule is not None and rule not in RULES and not (target is None and rule in names("aggregator")):
        raise ConfigError(f"there is no rule {rule!r}; {nearest(rule, RULES)}")
    function = load(target) if target else registered(rule or "")
    made = subject_of(function, rule or "", registered=target is None, **options)
    try:
        inspect.signature(made.function).bind(None, **made.options)
    except TypeError as error:
        call = ", ".join(["rows", *(f"{key}=..." for key in made.options)])
        raise ConfigError(f"{target} cannot be called as function({call}): {error}; wrap it in one that can") from error
    return made


def listing() -> dict[str, dict[str, str]]:
    """The laws, and the rules with what they need and are called with."""
    return {
        "laws": {law.name: law.says for law in LAWS},
        "rules": {
            name: rule.needs
            + "".join(f"; {key}={'...' if callable(value) else value}" for key, value in rule.options.items())
            for name, rule in RULES.items()
        },
    }


def on_function(target: str | None, rule: str | None, options: dict[str, object], as_json: bool) -> int:
    """Point the laws of aggregation rules at a function."""
    made = subject(target, rule, options)
    exempt = exemptions("aggregator", made.name) if made.name else {}
    findings = [examine(made, law, exempt) for law in LAWS]
    shown, used = target or f"fedwarden {rule}", {k: v for k, v in made.options.items() if not callable(v)}
    if as_json:
        laws = [asdict(finding) for finding in findings]
        print(json.dumps({"target": shown, "rule": rule, "options": used, "laws": laws}, indent=2))
    else:
        words = ", ".join(f"{key}={value}" for key, value in used.items())
        print(f"{shown} as {made.name or 'any rule'}" + (f" with {words}" if words else ""))
        print(table(findings))
    return int(any(f.status == "broken" for f in findings))


def run(args: Sequence[str] | None = None) -> int:
    """Parse, examine, print."""
    given = parser().parse_args(args)
    if given.list:
        show(listing(), given.json)
        return 0
    if given.target is None and given.rule is None:
        raise ConfigError("name a function as module:function, a rule by --rule, or both (see --help)")
    return on_function(given.target, given.rule, settings(given.set), given.json)


def main(args: Sequence[str] | None = None) -> int:
    """Run the command; what a user can cause ends in one line on standard error and exit code 2."""
    return components.main(args, run)


if __name__ == "__main__":
    sys.exit(main())
