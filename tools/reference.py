"""The reference pages of the documentation, written from the program itself when the site is built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import fedwarden
from fedwarden.cli import COMMANDS, command_of
from fedwarden.cli.listing import options
from fedwarden.core.registry import FOLDERS, lookup, names, summary
from fedwarden.sim.change_audit import AuditConfig
from fedwarden.sim.scenario import Scenario

EXAMPLES = Path(__file__).parents[1] / "examples"
TOURS = ("digits.toml", "audit.toml")  # the examples whose comments say what a key means

BEYOND = {  # what else there is to call, by module
    "conformance": ("check",),
    "conformance.law": ("Report",),
    "flower.asynchronous": ("Asynchronous",),
    "flower.strategy": ("Guarded",),
    "flower.mods": ("audit_mod",),
    "shards.pool": ("Shards",),
    "nvflare.aggregator": ("GuardedAggregator",),
    "audit.mitigations": ("add_noise", "clip_and_noise", "epsilon", "smooth"),
    "signals.probe": ("draw_probe", "synthetic_probe"),
    "sim.scenario": ("Scenario", "load_scenario"),
    "sim.federation": ("Federation", "simulate"),
    "store.ledger": ("Ledger",),
    "store.recorder": ("Recorder",),
}

TYPES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "object": "table"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> table(["a", "b"], [["1", "x|y"]]).splitlines()[-1]
    '| 1 | x\\\\|y |'
    """
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(" ".join(c.split()).replace("|", "\\|") for c in row) + " |" for row in cells)


def commands() -> str:
    """Every command with its arguments and options."""
    parts = ["# Command line", "`fedwarden COMMAND --help` says the same."]
    for name, text, command in every_command():
        context = command.make_context(name, [], resilient_parsing=True)
        usage = " ".join(["fedwarden", name, *command.collect_usage_pieces(context)])
        rows = [[f"`{_spelt(p, context)}`", p.help or "", _default(p)] for p in command.params]
        body = f"## fedwarden {name}\n\n{text}\n\n```text\n{usage}\n```\n\n{command.help}"
        parts.append(f"{body}\n\n{table(['argument or option', 'what it does', 'default'], rows)}")
    return "\n\n".join(parts) + "\n"


def every_command() -> Iterator[tuple[str, str, Any]]:
    """The commands with what they do, a group's one by one."""
    for name, (_, text) in COMMANDS.items():
        command = command_of(name)
        parts = getattr(command, "commands", None)
        if parts is None:
            yield name, text, command
        for part, inner in (parts or {}).items():
            yield f"{name} {part}", inner.get_short_help_str(limit=200), inner


def _spelt(parameter: Any, context: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.make_metavar(context))
    value = "" if parameter.is_flag else f" {parameter.make_metavar(context)}"
    return ", ".join(parameter.opts) + value


def _default(parameter: Any) -> str:
    known = parameter.default
    return "" if known is None or known is False or known == () or callable(known) else f"`{known}`"


def configuration() -> str:
    """Every key of a scenario file, and of the table that an audit adds to it."""
    words = meanings()
    parts = [
        "# Configuration file",
        "One TOML file describes a run: `fedwarden run FILE`. A key that is left out has its default; a key that does "
        "not exist is an error that names the nearest one. A *component* is a name, or a table with a `name` and its "
        'options: `rule = "gesd"` or `rule = {name = "gesd", alpha = 0.01}`; [all of them](components.md).',
    ]
    for title, model in (("", Scenario), ("audit", AuditConfig)):
        parts += _sections(title, model, words)
    tours = [f"## {name}\n\n```toml\n{(EXAMPLES / name).read_text(encoding='utf-8')}```" for name in TOURS]
    return "\n\n".join([*parts, *tours]) + "\n"


def meanings() -> dict[tuple[str, str], str]:
    """What the keys mean, by table and key, in the words of the examples."""
    general, audit = (dict(tour((EXAMPLES / name).read_text(encoding="utf-8"))) for name in TOURS)
    return general | {key: words for key, words in audit.items() if key[0] == "audit"}


def tour(text: str) -> Iterator[tuple[tuple[str, str], str]]:
    """The table, the key and the comment of each line of a TOML file that has one, commented out or not.

    >>> list(tour("[model]  # which\\n# hidden = [64]   # how wide"))
    [(('', 'model'), 'which'), (('model', 'hidden'), 'how wide')]
    """
    place = ""
    for line in text.splitlines():
        line = line.removeprefix("# ")
        if head := re.match(r"\[+([\w.]+)\]+(?:\s+# (.+))?", line):
            place = head[1]
            if head[2]:
                yield ("", place), head[2]
        elif key := re.match(r"(\w+) = .*?\s{2,}# (.+)", line):
            yield (place, key[1]), key[2]


def _sections(place: str, model: type[BaseModel], words: Mapping[tuple[str, str], str]) -> Iterator[str]:
    schema = model.model_json_schema()
    defs = {**schema.get("$defs", {}), "": schema}
    waiting = [(place, "", False)]
    known: dict[str, str] = {}  # of tables with the same keys one says what they mean
    while waiting:
        place, name, many = waiting.pop(0)
        rows = []
        for key, value in defs[name]["properties"].items():
            inner, listed = _inner(value)
            if inner and inner != "Component":
                waiting.append((f"{place}.{key}".strip("."), inner, listed))
                continue
            meaning = known.setdefault(f"{key} {value}", words.get((place, key), ""))
            rows.append([f"`{key}`", words.get((place, key), meaning), _kind(value), _default_of(value)])
        title = f"`[[{place}]]`" if many else f"`[{place}]`" if place else "The file"
        text = defs[name].get("description", "")
        yield f"## {title}\n\n{text}\n\n{table(['key', 'what it is', 'kind', 'default'], rows)}"


def _inner(schema: Mapping[str, Any]) -> tuple[str, bool]:
    """The model that a key holds, or a list of which it holds; empty for a plain value."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2], False
    if "items" in schema:
        return _inner(schema["items"])[0], True
    found = [_inner(option) for option in schema.get("anyOf", ())]
    return next((pair for pair in found if pair[0]), ("", False))


def _kind(schema: Mapping[str, Any]) -> str:
    """What a key takes, in words.

    >>> _kind({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'whole number ≥ 1'
    """
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "$ref" in schema:
        return "component"
    if "enum" in schema:
        return ", ".join(f'`"{value}"`' for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}s"
    bounds = [f"{sign} {schema[bound]:g}" for bound, sign in BOUNDS.items() if bound in schema]
    return f"{TYPES.get(schema.get('type', ''), 'anything')} {' and '.join(bounds)}".strip()


def _default_of(schema: Mapping[str, Any]) -> str:
    usual = schema.get("default")
    if isinstance(usual, dict):
        usual = usual.get("name")
    if usual is None or usual in ([], ""):
        return ""
    return f'`"{usual}"`' if isinstance(usual, str) else f"`{str(usual).lower() if usual in (True, False) else usual}`"


def components() -> str:
    """Every registered name with its sentence and its options."""
    parts = [
        "# Components",
        "What a scenario may name, by kind; `fedwarden list KIND` says the same. One of your own is "
        "[one file](../extending.md).",
    ]
    for kind in FOLDERS:
        rows = [
            [
                f"`{name}`",
                summary(kind, name).replace("``", "`"),
                ", ".join(f"`{_option(*pair)}`" for pair in options(kind, name).items()),
            ]
            for name in names(kind)
        ]
        parts.append(f"## {kind}\n\n{table(['name', 'what it is', 'options and defaults'], rows)}")
    return "\n\n".join(parts) + "\n"


def _option(option: str, usual: Any) -> str:
    """An option as TOML has it; one that is not set by itself has no value there.

    >>> _option("weighted", True), _option("f", None)
    ('weighted = true', 'f')
    """
    return option if usual is None else f"{option} = {json.dumps(usual, default=str)}"


def api() -> str:
    """What is there to call from Python, from its docstrings."""
    parts = ["# Python", "What `import fedwarden as fw` gives as `fw.NAME`, by the module that it lives in."]
    parts += [_module(home, known) for home, known in fedwarden._HOMES.items()]
    parts += ["## Components", "To be imported from the package of their kind, as `from fedwarden.rules import GESD`."]
    for kind in ("signal", "history", "rule", "policy", "aggregator"):
        factories = [lookup(kind, name) for name in names(kind)]
        for home in sorted({factory.__module__.removeprefix("fedwarden.") for factory in factories}):
            own = {factory.__qualname__ for factory in factories if factory.__module__ == f"fedwarden.{home}"}
            parts += [_module(home, sorted(rest))] if (rest := own.difference(fedwarden._HOMES.get(home, ()))) else []
    parts += ["## Beyond", "To be imported from the module that is named."]
    parts += [_module(home, known) for home, known in BEYOND.items()]
    return "\n\n".join(parts) + "\n"


def _module(home: str, known: Sequence[str]) -> str:
    return "\n\n".join([f"## fedwarden.{home}", *(f"::: fedwarden.{home}.{name}" for name in known)])


PAGES = {
    "reference/command-line.md": commands,
    "reference/configuration.md": configuration,
    "reference/components.md": components,
    "reference/python.md": api,
}
