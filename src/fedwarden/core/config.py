"""One TOML file describes a run; overrides are ``a.b=c``; an unknown key is an error that names the nearest one."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from .errors import ConfigError, nearest
from .registry import make

T = TypeVar("T", bound=BaseModel)


class Strict(BaseModel):
    """A table whose keys are all known; frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def as_table(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


class Component(Strict):
    """A registered thing: its name and its options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def options(self) -> dict[str, object]:
        return dict(self.model_extra or {})

    def make(self, kind: str) -> Any:
        return make(kind, self.name, **self.options)


Part = Annotated[Component, BeforeValidator(as_table)]


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    if not path.is_file():
        what = f"{path} is a folder" if path.is_dir() else f"no file at {path}"
        raise ConfigError(f"{what}; expected a TOML file that describes a run")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def to_toml(table: Mapping[str, object]) -> str:
    """A table as TOML; what is None is left out, as TOML has no word for it.

    >>> print(to_toml({"rounds": 5, "name": None, "guard": {"preset": "auto", "options": {"k": 2.5}}}))
    rounds = 5
    <BLANKLINE>
    [guard]
    preset = "auto"
    <BLANKLINE>
    [guard.options]
    k = 2.5
    """
    return tomli_w.dumps({k: _known(v) for k, v in table.items() if v is not None}).strip()


def override(table: Mapping[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """The table with ``a.b=c`` applied; c is read as TOML, as JSON, else as a plain string; a number indexes a list.

    >>> override({"guard": {"preset": "auto"}}, ["guard.preset=none", "rounds=5"])
    {'guard': {'preset': 'none'}, 'rounds': 5}
    """
    out: dict[str, Any] = deepcopy(dict(table))
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"an override is written a.b=c; got {setting!r}")
        value = _value(text)
        *parents, last = path.strip().split(".")
        at: Any = out
        for key in parents:
            at = _child(at, key, path)
        if isinstance(at, list):
            at[_index(at, last, path)] = value
        else:
            at[last] = value
    return out


def parse(model: type[T], table: Mapping[str, object], place: Sequence[str] = ()) -> T:
    """The table as a validated model; the first fault becomes one clear line. ``place`` are the tables around it."""
    try:
        return model.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(_explain(model, error, place)) from error


WORDS = {  # of pydantic's faults, by its names for them
    **dict.fromkeys(("model_type", "dict_type", "mapping_type"), "a table, as {{key = value}}"),
    **dict.fromkeys(("tuple_type", "list_type"), "a list: [...], of tables [[...]], or [] for none"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": 'a text, as "..."',
    "string_too_short": "a text of {min_length} or more characters",
    "string_too_long": "a text of {max_length} or fewer characters",
    "literal_error": "{expected}",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
}


def _explain(model: type[BaseModel], error: ValidationError, place: Sequence[str]) -> str:
    faults = error.errors()
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    path = [str(part) for part in fault["loc"]]
    where = ".".join([*place, *path])
    if fault["type"] == "extra_forbidden":
        parent = ".".join([*place, *path[:-1]]) or "the file"
        return f"unknown key {path[-1]!r} in {parent}; {nearest(path[-1], _keys(model, path[:-1]))}"
    if fault["type"] == "missing":
        return f"key {where!r} is missing"
    words = WORDS.get(fault["type"])
    told = f"expected {words.format(**fault.get('ctx', {}))}" if words else fault["msg"].removeprefix("Value error, ")
    return f"{where or 'the file'}: {told}; got {fault['input']!r}"


def _keys(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The known keys of a nested table."""
    for part in path:
        field = model.model_fields.get(part)
        if field is None:
            continue
        nested = _models(field.annotation)
        if nested:
            model = nested[0]
    return [field.alias or name for name, field in model.model_fields.items()]


def _models(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]


def _child(at: Any, key: str, path: str) -> Any:
    place: Any = _index(at, key, path) if isinstance(at, list) else key
    if isinstance(at, dict) and key not in at:
        at[key] = {}
    if isinstance(at[place], str):  # a bare name becomes a table that can carry options
        at[place] = {"name": at[place]}
    if not isinstance(at[place], dict | list):
        raise ConfigError(f"cannot set {path}: {key!r} is {at[place]!r}, not a table")
    return at[place]


def _value(text: str) -> object:
    """What is after the = of an override; TOML has no number such as .01, and its inline tables are not JSON's."""
    with suppress(tomllib.TOMLDecodeError):
        return tomllib.loads(f"value = {text}")["value"]
    start = text.strip()[:1]
    with suppress(ValueError):
        if start and start in "[{":
            return json.loads(text)
        if start and start in "+-.":
            return float(text)
    return text


def _index(at: Sequence[object], key: str, path: str) -> int:
    if not key.isdigit() or int(key) >= len(at):
        raise ConfigError(f"cannot set {path}: {key!r} is not an index below {len(at)}")
    return int(key)


def _known(value: object) -> object:
    """The value without what is None in it."""
    if isinstance(value, Mapping):
        return {k: _known(v) for k, v in value.items() if v is not None}
    return [_known(v) for v in value if v is not None] if isinstance(value, list | tuple) else value
