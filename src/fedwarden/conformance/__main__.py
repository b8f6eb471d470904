"""``python -m fedwarden.conformance rule gesd``: which laws a component keeps and breaks."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import NoReturn

from ..core.errors import ConfigError, UnknownName, nearest
from ..core.plugins import load
from ..core.registry import FOLDERS, names
from . import check, laws_of

EPILOG = f"KIND is one of {', '.join(FOLDERS)}. Exit code 1: a law is broken; 2: the call was wrong."


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see --help)")


def parser() -> Parser:
    """The options of the command."""
    about = "Point the laws at a registered component, or at all of a kind."
    made = Parser(prog="python -m fedwarden.conformance", description=about, epilog=EPILOG)
    made.add_argument("kind", nargs="?", metavar="KIND", help="left out: components of every kind")
    made.add_argument("name", nargs="?", metavar="NAME", help="one component of the kind; left out: all of them")
    made.add_argument("--import", action="append", default=[], metavar="MODULE", help="import this first; repeatable")
    made.add_argument("--set", action="append", default=[], metavar="F=2", help="an option to call it with; repeatable")
    made.add_argument("--list", action="store_true", help="show the laws of each kind, or of one")
    made.add_argument("--json", action="store_true", help="print one JSON object")
    return made


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


def on_components(kind: str | None, name: str | None, options: dict[str, object], as_json: bool) -> int:
    """Point the laws of each kind at one of its components, at all of them, or at those of every kind."""
    if kind is not None and kind not in FOLDERS:
        raise ConfigError(f"there is no kind {kind!r}; {nearest(kind, FOLDERS)}")
    if options and name is None:
        raise ConfigError("options are those of one component; name its kind and it before --set")
    todo = [(k, n) for k in ([kind] if kind else FOLDERS) for n in ([name] if name else names(k))]
    reports = []
    for k, n in todo:
        reports.append(check(k, n, **options))
        if not as_json:
            print(reports[-1], flush=True)
    if as_json:
        found = [{"kind": r.kind, "name": r.name, "laws": [asdict(f) for f in r.findings]} for r in reports]
        print(json.dumps({"components": found}, indent=2))
    elif len(reports) > 1:
        broken = [f"{r.kind} {r.name} ({', '.join(r.broken)})" for r in reports if r.broken]
        print(f"{len(reports)} components; broken: {'; '.join(broken) or 'none'}")
    return int(any(r.broken for r in reports))


def run(args: Sequence[str] | None = None) -> int:
    """Parse, examine, print."""
    given = parser().parse_args(args)
    for module in (*getattr(given, "import"), *([given.name] if ":" in (given.name or "") else [])):
        load(module)
    if given.list:
        laws = {
            kind: {law.name: law.says for law in laws_of(kind)} for kind in ([given.kind] if given.kind else FOLDERS)
        }
        show({f"laws of kind {kind}": rows for kind, rows in laws.items()}, given.json)
        return 0
    return on_components(given.kind, given.name, settings(given.set), given.json)


def show(tables: Mapping[str, Mapping[str, str]], as_json: bool) -> None:
    """Names and what they say, a table a title."""
    if as_json:
        print(json.dumps(tables, indent=2))
        return
    for title, rows in tables.items():
        width = max(map(len, rows))
        print("\n".join([title, *(f"  {key.ljust(width)}  {text}" for key, text in rows.items())]))


def main(args: Sequence[str] | None = None, run: Callable[[Sequence[str] | None], int] = run) -> int:
    """Run the command; what a user can cause ends in one line on standard error and exit code 2."""
    try:
        return run(args)
    except ConfigError as error:
        own = "; name the module of one of your own by --import" if isinstance(error, UnknownName) else ""
        print("error: " + " ".join(str(error).split()) + own, file=sys.stderr)
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
