"""The dashboard of a damaged ledger: every page comes, and says in words what cannot be read."""

import json
import random
import shutil
import sqlite3
from contextlib import closing
from functools import partial

import pytest

pytest.importorskip("dash", reason="the extra 'dashboard' is not installed")

from dashboard.conftest import Asker
from fedwarden.core.errors import FedwardenError
from fedwarden.dashboard.app import create_app
from fedwarden.dashboard.pages import PAGES, audit, client, whatif
from fedwarden.dashboard.pages import run as page_of_run
from fedwarden.dashboard.routes import Page
from fedwarden.dashboard.state import Workspace

from .damage import SEED, change, fill, flip


@pytest.fixture(scope="module")
def sound(tmp_path_factory, played):
    return fill(tmp_path_factory.mktemp("sound"), played)


def parts(workspace, number):
    """All that the pages make of a run."""

    def view():
        return workspace.view(number)

    return {
        **{kind: partial(page.version, workspace, Page(kind, number)) for kind, page in PAGES.items()},
        "told": lambda: page_of_run.told(workspace.view(number, "far")),
        "client": lambda: client.sheet(view(), view().series.clients[0], False),
        "verdict": lambda: whatif.verdict(workspace, view(), ("rule=gesd",)),
        "alarms": lambda: [audit.alarms(workspace.observations(number, o)) for o in workspace.observers(number)],
    }


def draw(home):
    """Which parts of the pages could not be made, and why."""
    faults = {}
    for number in (1, 2):
        for name, part in parts(Workspace(home), number).items():
            try:
                part()
            except FedwardenError as error:
                faults[number, name] = str(error)
    return faults


@pytest.mark.parametrize("how", [flip, change])
def test_pages_of_damaged_ledgers_fail_in_words_only(sound, tmp_path, how):
    for i in range(12):
        home = tmp_path / str(i)
        shutil.copytree(sound, home)
        what = how(home / "ledger.sqlite", random.Random(f"{SEED} {i}"))
        print(f"seed {SEED}, dashboard, {how.__name__}, case {i}:", what)
        for words in draw(home).values():
            assert "damaged" in words or "ledger" in words or "configuration" in words or "run" in words


def test_a_sound_ledger_is_drawn_in_full(sound):
    assert draw(sound) == {}


@pytest.mark.parametrize("path", ["/", "/run/1", "/run/1/what-if", "/run/1/audit", "/compare"])
def test_a_page_is_served_with_the_message_and_is_no_500(sound, tmp_path, path):
    home = shutil.copytree(sound, tmp_path / "home")
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("UPDATE run SET config = '[' WHERE id = 1")
    ask = Asker(create_app(home))
    assert ask.client.get(path).status_code == 200
    told = ask("version.data", url__pathname=path, url__search="")
    assert "run 1: column config should hold JSON" in json.dumps(told)
