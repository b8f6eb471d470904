"""One TOML file, overrides on top, and one clear line for what is wrong."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from fedwarden.core.config import Strict, override, parse, read_toml, to_toml
from fedwarden.core.errors import ConfigError, FedwardenError


class Train(Strict):
    learning_rate: float = Field(0.1, gt=0)
    epochs: int = 1


class Attack(Strict):
    name: str
    fraction: float = 1.0


class Run(Strict):
    rounds: int
    train: Train = Train()
    attacks: tuple[Attack, ...] = ()
    guard: Train | None = None


def test_a_file_becomes_a_model(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('rounds = 3\n[train]\nepochs = 2\n[[attacks]]\nname = "flip ä"\n', encoding="utf-8")
    run = parse(Run, override(read_toml(path), ["train.learning_rate=0.5"]))
    assert run == Run(rounds=3, train=Train(epochs=2, learning_rate=0.5), attacks=(Attack(name="flip ä"),))
    with pytest.raises(ValueError, match="frozen"):
        run.rounds = 4


@pytest.mark.parametrize("content", [b"rounds = \n", b"a = 1\na = 2\n", b"name = '\xff'\n"])
def test_a_file_that_is_not_toml(content, tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"run\.toml is not valid TOML: "):
        read_toml(path)


def test_no_file(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(ConfigError, match=r"(no file at .*|is a folder); expected a TOML file"):
            read_toml(path)


@pytest.mark.parametrize(
    ("setting", "want"),
    [
        ("rounds=5", {"rounds": 5}),
        ("rounds = 5", {"rounds": 5}),
        ("rate=1e-3", {"rate": 1e-3}),
        ("on=true", {"on": True}),
        ("name=auto", {"name": "auto"}),
        ('name="7"', {"name": "7"}),
        ("name=a=b", {"name": "a=b"}),
        ("sizes=[1, 2]", {"sizes": [1, 2]}),
        ("empty=", {"empty": ""}),
        ("a.b.c=1", {"a": {"b": {"c": 1}}}),
        ("rate=.01", {"rate": 0.01}),
        ("rate=.a", {"rate": ".a"}),
        ('attacks=[{name = "copy"}]', {"attacks": [{"name": "copy"}]}),
        (
            'attacks=[{"name": "copy", "on": true, "end": null}]',
            {"attacks": [{"name": "copy", "on": True, "end": None}]},
        ),
        ("name=[half", {"name": "[half"}),
        ("name=null", {"name": "null"}),
    ],
)
def test_an_override_is_read_as_toml_as_json_else_as_text(setting, want):
    assert override({}, [setting]) == want


def test_overrides_go_into_tables_lists_and_names():
    table = {"guard": "auto", "attacks": [{"name": "flip"}, {"name": "noise"}], "sizes": [1, 2]}
    out = override(table, ["guard.alpha=0.1", "attacks.1.snr=3", "sizes.0=9", "guard.alpha=0.2"])
    assert out == {
        "guard": {"name": "auto", "alpha": 0.2},
        "attacks": [{"name": "flip"}, {"name": "noise", "snr": 3}],
        "sizes": [9, 2],
    }
    assert table == {"guard": "auto", "attacks": [{"name": "flip"}, {"name": "noise"}], "sizes": [1, 2]}  # a copy


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("rounds", "an override is written a.b=c; got 'rounds'"),
        ("=5", "an override is written a.b=c"),
        ("rounds.x=5", "cannot set rounds.x: 'rounds' is 3, not a table"),
        ("attacks.2.x=5", "'2' is not an index below 1"),
        ("attacks.x=5", "'x' is not an index below 1"),
        ("attacks.-1=5", "'-1' is not an index below 1"),
        ("sizes.0.x=5", "cannot set sizes.0.x"),
    ],
)
def test_an_override_that_cannot_be_applied(setting, message):
    with pytest.raises(ConfigError, match=message):
        override({"rounds": 3, "attacks": [{"name": "flip"}], "sizes": [1]}, [setting])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rounds": 3, "round": 3}, "unknown key 'round' in the file; did you mean 'rounds'?"),
        ({"rounds": 3, "train": {"epoch": 3}}, "unknown key 'epoch' in train; did you mean 'epochs'?"),
        ({"rounds": 3, "guard": {"epoch": 3}}, "unknown key 'epoch' in guard; did you mean 'epochs'?"),
        (
            {"rounds": 3, "attacks": [{"name": "flip", "fractoin": 0.5}]},
            "unknown key 'fractoin' in attacks.0; did you mean 'fraction'?",
        ),
        ({"rounds": 3, "zzz": 3}, "unknown key 'zzz' in the file; known: attacks, guard, rounds, train"),
        ({"rounds": "x", "zzz": 3}, "unknown key 'zzz'"),  # a misspelt key first, since it explains the rest
        ({}, "key 'rounds' is missing"),
        ({"rounds": 3, "attacks": [{}]}, "key 'attacks.0.name' is missing"),
        ({"rounds": 3, "train": {"learning_rate": -1.0}}, "train.learning_rate: expected more than 0.0; got -1.0"),
        ({"rounds": 2.5}, "rounds: expected a whole number; got 2.5"),
        ({"rounds": "x"}, "rounds: expected a whole number; got 'x'"),
    ],
)
def test_a_fault_is_one_line_that_names_the_key(table, message):
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")) as caught:
        parse(Run, table)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, FedwardenError)


KEYS = st.text(st.characters(codec="utf-8"), max_size=6)
VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=5))
def test_a_table_written_as_toml_is_read_back(table):
    assert tomllib.loads(to_toml(table)) == table


def test_what_is_none_is_left_out_of_toml():
    table = {"a": None, "b": {"c": None, "d": {"e": None, "f": [1, None]}}, "g": [{"h": None}]}
    assert tomllib.loads(to_toml(table)) == {"b": {"d": {"f": [1]}}, "g": [{}]}
