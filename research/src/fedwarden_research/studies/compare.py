"""What ``bench defences`` runs on a scenario of one's own: defences and attacks by name, from a module or a file."""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from fedwarden.core.config import override, read_toml
from fedwarden.core.errors import ConfigError, nearest
from fedwarden.core.plugins import load
from fedwarden.core.registry import blamed, canonical, lookup, names, parameters
from fedwarden.sim.data.sources import folders
from fedwarden.sim.federation import Federation
from fedwarden.sim.scenario import AttackConfig, Scenario, load_scenario
from fedwarden.studies.attack_suite import study_name
from fedwarden.studies.runner import LATE, Table, played

from .findings import FILE, MEASURES, NO_ATTACK, Comparison, findings
from .plan import Asked, Plan, only_by
from .tables import Result

ATTACK: Table = {"name": "label_flip", "share": 0.25}  # where the file has none
DEFENCES = ("none", "auto")
NUMBER = ("f", "b")  # options of aggregators that are the number of attackers
MEMBERS = {"clients", "count", "share"}
CALL = re.compile(r"([^()]+)(?:\((.*)\))?")
KINDS = {"preset": "--defence", "aggregator": "--defence", "attack": "--attack"}


def plan(asked: Asked) -> Plan:
    """Every defence without attack and under every attack."""
    assert asked.file is not None
    if asked.data:
        raise ConfigError(f"--data chooses the data of the grid; those of {asked.file} are under [data] there")
    made, name = _compared(asked, asked.file)
    _check_folder(asked.folder, made)
    return Plan(
        name,
        made.cells(),
        "comparison.md",
        told=lambda found: findings(made, found).told(),
        page=lambda found: findings(made, found).page(),
        run=play,
        counts=lambda found: findings(made, found).counts(),
        pictures=lambda found, folder: findings(made, found).write(folder),
    )


def play(run: Table) -> Result:
    """One run in numbers, means over its last rounds; ``error`` is the first one of its aggregator."""
    try:
        result = played(run["scenario"])
    except Exception as error:  # a component of one's own may fail in any way
        plain = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{run['where']}: {blamed(error) or plain}") from error
    if result.unchanged:
        raise ConfigError(f"{run['where']}: no round changed the model; {result.unchanged}")
    late = [record.metrics for record in result.records[-LATE:]]
    errors = [str(n) for record in result.records for n in record.notes if n.kind == "aggregator_failed"]
    return {
        **{key: float(np.mean([m[key] for m in late])) for key in MEASURES if all(key in m for m in late)},
        **{key: result.summary[key] for key in ("rounds", "attackers", "caught", "wronged")},
        "error": next(iter(errors), None),
    }


def _compared(asked: Asked, file: Path) -> tuple[Comparison, str]:
    """The comparison, with everything in it tried once, and the name that keeps its results."""
    given = {"rounds": asked.rounds, "train.device": asked.device}
    settings = [*asked.settings, *(f"{key}={value}" for key, value in given.items() if value is not None)]
    table = override(read_toml(file), settings)
    guard, own = table.pop("guard", {}), table.pop("attacks", [])
    if isinstance(guard, Mapping) and (parts := sorted({*guard} - {"preset", "name"})):
        raise ConfigError(
            f"{file} sets guard.{parts[0]}, and every --defence has a guard of its own; move [guard] into a file of "
            "its own beside it, and compare that: --defence guard.toml"
        )
    table.pop("audit", None)
    scenario = load_scenario(table, folder=file.parent)
    if scenario.data.own:  # the processes know no folder of a file
        table["data"] = {**table["data"], "folder": scenario.data.folder}
    scenario = Federation(scenario).scenario  # what is wrong with it is said now, before anything is run
    attacks = {NO_ATTACK: [], **_attacks(asked.attack, own, file)}
    many = [_attackers(name, some, table, scenario, file) for name, some in attacks.items()]
    defences = dict(_defence(word, max(many), table, file) for word in asked.defence or DEFENCES)
    stamps = dict(_stamps([table, defences, attacks], scenario))
    seeds = range(scenario.seed, scenario.seed + (asked.seeds or 5))
    numbers = {"seeds": asked.seeds, "rounds": asked.rounds, "device": asked.device, "out": asked.folder}
    command = asked.command("defences", **numbers)
    return Comparison(table, defences, attacks, seeds, command, stamps), study_name(scenario, "compare")


def _attacks(asked: Sequence[str], own: Sequence[Table], file: Path) -> dict[str, list[Table]]:
    """The attacks by name; the one in the file says which clients carry them out, and when."""
    if not asked:
        some = list(own) or [ATTACK]
        return {" + ".join(str(attack.get("name")) for attack in some): some}
    if len(own) > 1:
        raise ConfigError(
            f"{file} has {len(own)} tables [[attacks]]; with --attack it has one, for the clients that attack, or none"
        )
    who = {key: value for key, value in (*own, ATTACK)[0].items() if key in AttackConfig.model_fields}
    found: dict[str, list[Table]] = {}
    for word in asked:
        name, options = _call(word)
        _thing(name, ("attack",), file)
        kept = {k: v for k, v in who.items() if not (k in MEMBERS and MEMBERS & {*options})}
        found[word] = [{**kept, **options, "name": name}]
    return found


def _attackers(name: str, attacks: Sequence[Table], table: Table, settled: Scenario, file: Path) -> int:
    """How many clients attack; that none does is a mistake."""
    data = {**table.get("data", {}), "clients": settled.data.clients, "names": settled.data.names}
    scenario = load_scenario({**table, "data": data, "attacks": list(attacks)}, folder=file.parent)
    for attack in scenario.attacks:
        attack.make("attack")
    many = len(scenario.attackers())
    if attacks and not many:
        asks = ", ".join(f"{key} = {attacks[0][key]}" for key in sorted(MEMBERS & {*attacks[0]}))
        raise ConfigError(f"{name}: {asks} of {settled.data.clients} clients is no attacker; raise it")
    return many


def _defence(word: str, f: int, table: Table, file: Path) -> tuple[str, Table]:
    """A defence's name and its table [guard]; an aggregator with the option for it gets the number of attackers."""
    name, options = (Path(word).stem, {}) if word.endswith(".toml") else _call(word)
    if word.endswith(".toml"):
        guard = (given := read_toml(file.parent / word)).get("guard", given)
    else:
        kind, factory = _thing(name, ("aggregator", "preset"), file)
        told = {key: f for key in NUMBER if key in parameters(factory)}
        guard = only_by(name, **told | options) if kind == "aggregator" else {"preset": name, "options": options}
    try:
        load_scenario({**table, "guard": guard}, folder=file.parent).guard.build()
    except ConfigError as error:
        raise ConfigError(f"--defence {word}: {error}") from error
    return name if word.endswith(".toml") else word, guard


def _call(word: str) -> tuple[str, dict[str, Any]]:
    """A name and its options.

    >>> _call("krum(f=2)"), _call("mine:Attack")
    (('krum', {'f': 2}), ('mine:Attack', {}))
    """
    if not (parts := CALL.fullmatch(word.strip())):
        raise ConfigError(f"expected a name or 'name(option=value)'; got {word!r}")
    try:
        return parts[1].strip(), tomllib.loads(f"x = {{{parts[2] or ''}}}")["x"]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{word!r}: options are TOML, as in '(fraction=0.5, mode=\"pairwise\")'; {error}") from error


def _thing(name: str, kinds: Sequence[str], file: Path) -> tuple[str, Any]:
    """Which of these kinds a component is, and its factory; what it is of one's own, its methods say."""
    if ":" in name:
        load(name, file.parent, f"which {KINDS[kinds[0]]} asks for")
        factory = lookup(kinds[0], name)
        forges = hasattr(factory, "forge") or hasattr(factory, "poison")
        kind = "attack" if forges else "aggregator" if hasattr(factory, "step") else "preset"
    else:
        kind = next((kind for kind in KINDS if canonical(name) in names(kind)), "")
        if not kind:
            known = [other for kind in kinds for other in names(kind)]
            raise ConfigError(f"there is no {' or '.join(kinds)} {name!r}; {nearest(name, known)}")
        factory = lookup(kind, name)
    if kind not in kinds:
        raise ConfigError(f"{name} is of the kind {kind}, not {' or '.join(kinds)}: write {KINDS[kind]} {name}")
    return kind, factory


def _stamps(value: object, scenario: Scenario) -> Iterator[tuple[str, str]]:
    """Short hashes of the modules and data files that tables name."""
    text = json.dumps(value, default=str)
    for module in sorted({*scenario.imports, *re.findall(r'"([\w.]+):\w+"', text)}):
        path = getattr(sys.modules.get(module), "__file__", None)
        if path:
            yield module, _stamp(Path(path))
    for name in sorted({*re.findall(r'"file": "([^"]+)"', text)}):
        if found := [place / name for place in folders(scenario.data.folder) if (place / name).is_file()]:
            yield name, _stamp(found[0])


def _stamp(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:12]


def _check_folder(folder: Path | None, made: Comparison) -> None:
    """Refuse a folder that holds something else; defences, attacks and seeds may be added to a comparison."""
    if folder is None or not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / FILE).is_file():
        raise ConfigError(f"{folder} holds files of something else, as it has no {FILE}; give a new or empty folder")
    old, new = read_toml(folder / FILE), made.described()
    before, after = old["scenario"], new["scenario"]
    changes = [(key, before.get(key, "unset"), after.get(key, "unset")) for key in sorted({*before, *after})]
    for kind in ("defences", "attacks"):
        changes += [(f"{kind}.{name}", given, new[kind].get(name, "left out")) for name, given in old[kind].items()]
    changes += [("seeds", old["seeds"], new["seeds"] if {*old["seeds"]} - {*new["seeds"]} else old["seeds"])]
    if found := [f"{key} was {b} and is {a}" for key, b, a in changes if a != b]:
        raise ConfigError(f"{folder} holds another comparison: {found[0]}; give another folder")
