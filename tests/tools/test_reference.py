"""The reference has everything that there is, in words."""

import re

import pytest
import reference

import fedwarden
from fedwarden.cli import COMMANDS
from fedwarden.core.registry import FOLDERS, names
from fedwarden.sim.change_audit import AuditConfig
from fedwarden.sim.scenario import DataConfig, GuardConfig, Scenario, TrainConfig


@pytest.mark.parametrize("page", reference.PAGES)
def test_a_page_is_the_same_each_time_and_names_no_object(page):
    text = reference.PAGES[page]()
    assert text == reference.PAGES[page]()
    assert " at 0x" not in text
    assert "PydanticUndefined" not in text


def test_every_command_has_its_options():
    text = reference.commands()
    for name in COMMANDS:
        assert f"## fedwarden {name}\n" in text or f"## fedwarden {name} " in text
    assert "| `--set A.B=C` | Override a key" in text
    assert r"| `--engine [in-process\|flower]` |" in text


def test_every_component_has_a_sentence():
    text = reference.components()
    for kind in FOLDERS:
        section = text.split(f"\n## {kind}\n")[1].split("\n## ")[0]
        for name in names(kind):
            assert re.search(rf"^\| `{re.escape(name)}` \| [\w`][^|]+ \|", section, re.MULTILINE), (kind, name)


def test_every_key_is_there_with_its_meaning():
    text = reference.configuration()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", text, re.MULTILINE)
    keys = {key for key, _ in rows}
    for model in (Scenario, DataConfig, TrainConfig, GuardConfig, AuditConfig):
        for key in model.model_fields:
            assert key in keys or f"[{key}]" in text or f".{key}]" in text, key
    assert not [key for key, meaning in rows if not meaning.strip()]
    assert (
        "| `validation` | the part of its data that each client keeps back to evaluate on | number ≥ 0 and < 1 |"
        in text
    )


def test_everything_public_is_in_the_python_reference():
    found = set(re.findall(r"^::: fedwarden\.[\w.]+\.(\w+)$", reference.api(), re.MULTILINE))
    assert found >= set(fedwarden.__all__) - {"__version__"}
    assert found >= {"PID", "GESD", "gesd", "divergence", "Krum", "Turns", "RelativeDistance"}
