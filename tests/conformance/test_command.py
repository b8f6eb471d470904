"""The commands of the conformance suites: the table, the exit codes and the one-line errors."""

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedwarden.conformance.__main__ import main as on_components
from fedwarden.conformance.law import Finding, examine
from fedwarden.conformance.laws import LAWS
from fedwarden.conformance.subject import Subject, flat, layered
from fedwarden.core.registry import FOLDERS, exemptions
from fedwarden_research.conformance.__main__ import main
from fedwarden_research.conformance.rules import RULES, subject_of

MINE = """
import numpy as np

def median(rows):
    return np.median(rows, axis=0)

def krum(rows, f):
    return np.asarray(rows)[0]

def careless(rows):
    rows[0] = 0.0
    return rows.mean(axis=0)

value = 3
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("mine", None)


def lines(capsys):
    return {words[0]: words[1] for line in capsys.readouterr().out.splitlines() if len(words := line.split()) > 1}


def test_a_broken_law_is_exit_code_1_and_named_with_its_numbers(mine, capsys):
    assert main(["mine:median", "--rule", "median"]) == 1
    out = capsys.readouterr().out
    assert "nan-client          broken       one entry of one client of 8 nan: 1 of 17 results are not finite" in out
    assert "even-n              kept" in out
    assert " 1 broken, " in out.splitlines()[-1]


def test_all_kept_is_exit_code_0_and_the_registry_needs_no_target(capsys):
    assert main(["--rule", "krum", "--set", "f=1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fedwarden krum as krum with f=1\n")
    assert "19 kept, 0 broken, 0 excused, of 0 it cannot tell" in out


def test_without_a_rule_the_laws_of_all_rules_run(mine, capsys):
    assert main(["mine:careless"]) == 1
    found = lines(capsys)
    assert found["input-untouched"] == "broken"
    assert found["translation"] == "cannot"


def test_json(mine, capsys):
    assert main(["mine:krum", "--rule", "krum", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["target"], told["rule"], told["options"]) == ("mine:krum", "krum", {"f": 2})
    assert [finding["law"] for finding in told["laws"]] == [law.name for law in LAWS]
    assert "of 24 cases differ" in next(f for f in told["laws"] if f["law"] == "odd-n")["note"]


def test_list_names_every_law_and_rule(capsys):
    assert main(["--list"]) == 0
    out = capsys.readouterr().out
    assert all(law.name in out and law.says in out for law in LAWS)
    assert all(rule in out for rule in RULES)
    assert main(["--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"laws", "rules"}
    assert on_components(["--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == {f"laws of kind {kind}" for kind in FOLDERS}


OF_COMPONENTS = [
    (["ruel", "gesd"], "there is no kind 'ruel'; did you mean 'rule'?"),
    (["rule", "gesdd"], "there is no rule 'gesdd'; did you mean 'gesd'?"),
    (["rule", "gesd", "--import", "nowhere"], "cannot import 'nowhere'"),
    (["rule", "--set", "k=2"], "options are those of one component"),
    (["rule", "k_sigma", "--set", "kk=2"], "rule 'k_sigma' has no option 'kk'"),
    (["rule", "--bogus"], "unrecognized arguments: --bogus (see --help)"),
]
OF_FUNCTIONS = [
    ([], "name a function as module:function, a rule by --rule, or both"),
    (["mine", "--rule", "krum"], "a function is written module:function; got 'mine'"),
    (["nowhere:f", "--rule", "krum"], "cannot import 'nowhere'"),
    (["mine:kum", "--rule", "krum"], "'mine' has no function 'kum'; did you mean 'krum'?"),
    (["mine:value", "--rule", "krum"], "'mine' has no function 'value'"),
    (["mine:krum", "--rule", "kum"], "there is no rule 'kum'; did you mean 'krum'?"),
    (["mine:krum", "--rule", "multi_krum"], "cannot be called as function(rows, f=..., m=...)"),
    (["mine:krum", "--rule", "krum", "--set", "f"], "an option is written f=2; got 'f'"),
]


@pytest.mark.parametrize(
    ("command", "args", "says"),
    [*((on_components, *case) for case in OF_COMPONENTS), *((main, *case) for case in OF_FUNCTIONS)],
)
def test_a_wrong_call_is_one_line_and_exit_code_2(mine, capsys, command, args, says):
    assert command(args) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("error: ")
    assert says in told.err
    assert told.err.count("\n") == 1


def test_an_exception_is_a_broken_law_and_an_exempt_rule_is_not_asked():
    law = LAWS[0]
    assert examine(Subject(lambda rows: 1 / 0), law) == Finding(
        law.name, "broken", "raised ZeroDivisionError: division by zero"
    )
    translation = next(law for law in LAWS if law.name == "translation")
    excused = examine(subject_of(lambda rows, **o: None, "sign"), translation, exemptions("aggregator", "sign"))
    assert excused == Finding("translation", "excused", "signs are taken from zero")


def test_the_documentation_names_every_law_with_its_sentence():
    with (Path(__file__).parents[2] / "docs" / "conformance" / "laws.csv").open(encoding="utf-8", newline="") as file:
        assert list(csv.reader(file)) == [["law", "what it says"], *([f"`{law.name}`", law.says] for law in LAWS)]


def test_results_of_any_shape_are_read():
    assert flat([np.ones((2, 2)), np.array(3)]).tolist() == [1.0, 1.0, 1.0, 1.0, 3.0]
    assert flat({"a": np.ones(1), "b": np.zeros(1)}).tolist() == [1.0, 0.0]
    rows = np.arange(34.0).reshape(2, 17)
    assert np.array_equal(np.stack([flat(client) for client in layered(rows)]), rows)
    assert layered(rows, [5, 6])[1][2] == 6
