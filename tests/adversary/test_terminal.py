"""What a client names itself, or says when it fails, never steers the terminal or the page that shows it."""

import json
import logging
import unicodedata

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.serverapp import strategy as flower

from fedwarden import Warden, Watch
from fedwarden.cli import main
from fedwarden.core.words import printable
from fedwarden.flower import Guarded
from flower.conftest import quiet  # noqa: F401
from flower.nodes import NODES, LocalGrid, honest, model, shifted, trained, training

from .replies import HOSTILE

UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")


def steering(text):
    """The characters of a text that do more than show, but for the ends of lines."""
    return {c for c in text if c != "\n" and unicodedata.category(c) in UNSEEN}


@pytest.mark.parametrize("code", [0, 7, 9, 10, 13, 27, 127, 133, 155, 0x200B, 0x202E, 0x2028, 0xD800, 0xE000, 0xE0041])
def test_every_such_character_is_written_out(code):
    shown = printable(f"a{chr(code)}b")
    assert not steering(shown)
    assert "\n" not in shown
    assert shown.startswith("a\\")
    assert shown.encode("ascii").decode("unicode_escape") == f"a{chr(code)}b"


def failing(message):
    return [Message(Error(1, HOSTILE), reply_to=message)]


NAMED = f"loss{HOSTILE}"  # a metric, as a client could have talked all others into
poisoned = shifted(5.0, metrics={"num-examples": 10**9, NAMED: 0.5})
strange = training(lambda message: {**trained(message, 1), HOSTILE: np.ones(2)})


@pytest.fixture
def run(caplog):
    """A run whose clients have hostile names, errors, arrays and metrics; what Flower's log says of it."""
    crowd = {node: honest(node, {NAMED: 0.5}) for node in NODES} | {300: failing, 301: poisoned, 302: strange}
    far = Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 12.0}, start_round=1)
    name = f"run{HOSTILE}".encode("utf-8", "replace").decode()
    warden = Warden([far], "quarantine")
    guarded = Guarded(flower.FedAvg(), warden, name=name, client_name=lambda node: f"{node}{HOSTILE}")
    caplog.set_level(logging.INFO, "flwr")
    guarded.start(LocalGrid(crowd), model(), 4)
    assert len(guarded.warden.excluded) == 1
    return [record.getMessage() for record in caplog.records]


def test_flowers_log_shows_what_was_said_and_does_nothing(run):
    ours = [line for line in run if line.startswith("fedwarden")]
    assert any("failed" in line and "\\x1b]0;owned\\x07" in line for line in ours)
    assert any("excluded" in line for line in ours)
    assert not {c for line in run for c in steering(line)} - {"\t"}  # Flower's own lines begin with tabs


COMMANDS = (
    ["runs"],
    ["show", "1"],
    ["show", "1", "--round", "1"],
    ["replay", "1", "--rule", "gesd"],
    ["report", "1", "-o", "page.html"],
    ["export", "1", "-o", "-"],
    ["export", "1", "--to", "json", "-o", "-"],
    ["runs", "--json"],
    ["show", "1", "--json"],
    ["show", HOSTILE.encode("utf-8", "replace").decode()],
    ["show", "1", "--round", "99"],
    ["run", "no\x1b[2Jfile.toml"],
)


@pytest.mark.parametrize("command", COMMANDS, ids=[" ".join(c[:3]).encode("ascii", "replace") for c in COMMANDS])
def test_no_command_passes_it_on(run, command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(command)
    shown = capsys.readouterr()
    assert not steering(shown.out)
    assert not steering(shown.err)
    assert shown.out or "error: " in shown.err
    if "--json" in command or "json" in command:
        json.loads(shown.out)
    if command[0] == "report":
        words = (tmp_path / "page.html").read_text(encoding="utf-8").partition("<script")[0]
        assert "\\u202eevil" in words
        assert not steering(words)


def test_the_dashboard_writes_it_out_too():
    layout = pytest.importorskip("fedwarden.dashboard.layout")
    made = [layout.card(HOSTILE).children[0].children]
    made += [
        cell.children
        for cell in layout.table("", ["a", "b"], [[HOSTILE] * 2]).children.children[2].children[0].children
    ]
    assert len(made) == 3
    assert all("\\u202eevil" in text and not steering(text) for text in made)
