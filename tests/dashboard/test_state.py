"""What is kept of a workspace, when it is read again, and what a ledger in trouble does to it."""

import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.errors import FedwardenError
from fedwarden.dashboard import state
from fedwarden.dashboard.pages import run as runs
from fedwarden.dashboard.routes import Page
from fedwarden.dashboard.state import Workspace
from fedwarden.store import record
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.record import read_series
from fedwarden.store.series import Series
from fedwarden.store.word import say


@pytest.fixture
def opened(monkeypatch):
    """Every opening of a ledger by the dashboard, and from which round on a run was read."""
    seen = []

    class Spy(Ledger):
        def __init__(self, *args, **kwargs):
            seen.append(None)
            super().__init__(*args, **kwargs)

    def spy(ledger, run, after=0, *which):
        seen[-1] = after
        return read_series(ledger, run, after, *which)

    monkeypatch.setattr(state, "Ledger", Spy)
    monkeypatch.setattr(record, "read_series", spy)
    return seen


def settle(monkeypatch):
    """Let the files be old enough for their times to be trusted."""
    monkeypatch.setattr(state, "SETTLED", -1.0)


def test_nothing_is_read_while_nothing_changes(home, opened, monkeypatch):
    settle(monkeypatch)
    workspace = Workspace(home)
    first = workspace.briefs(), workspace.run(1), workspace.view(1)
    reads = len(opened)
    assert (workspace.briefs(), workspace.run(1), workspace.view(1)) == first
    assert len(opened) == reads


def test_a_growing_run_is_read_from_its_last_known_round_on(home, played, opened, monkeypatch):
    settle(monkeypatch)
    workspace = Workspace(home)
    with Ledger(home) as ledger:
        run = ledger.start("live", "flower", {}, {})
        for record in played[:3]:
            ledger.append(run, record)
        before = workspace.view(run)
        for record in played[3:]:
            ledger.append(run, record)
        ledger.finish(run, "done")
        opened.clear()
        after = workspace.view(run)
    assert opened == [3]
    assert (len(before.series), len(after.series), after.run.state) == (3, 6, "done")
    whole = Series.of(played)
    np.testing.assert_array_equal(after.series.weights, whole.weights)
    np.testing.assert_array_equal(after.series.excluded, whole.excluded)
    assert after.series.excluded_in == whole.excluded_in == {"h": 2}


def test_two_commits_within_the_resolution_of_the_clock_are_both_seen(home, played, monkeypatch):
    workspace = Workspace(home)
    monkeypatch.setattr(Workspace, "stamp", lambda self: state.Stamp(1, ((1, time.time_ns()),)))
    with Ledger(home) as ledger:
        run = ledger.start("live", "flower", {}, {})
        for k, record in enumerate(played, 1):
            ledger.append(run, record)
            assert len(workspace.view(run).series) == k


def test_one_watch_is_read_where_one_is_asked_for(home):
    workspace = Workspace(home)
    assert list(workspace.view(1, "far").series.watches) == ["far"]
    assert list(workspace.view(1, "no such watch").series.watches) == ["far"]
    assert workspace.view(2, "far").story.watches == ()


def test_a_run_opens_with_the_watch_that_flagged_most_clients(home, played, asker):
    with Ledger(home) as ledger:
        run = ledger.start("two watches", "flower", {}, {})
        for record in played:
            (far,) = record.watches
            ledger.append(run, replace(record, watches=(replace(far, name="still", flagged=far.flagged & False), far)))
    assert list(Workspace(home).view(run, "").series.watches) == ["far"]
    ask, path = asker(home), f"/run/{run}"

    def opened(search):
        return ask("watch.value", version__data="1", url__pathname=path, url__search=search)["response"]["watch"]

    assert opened("") == {"options": ["still", "far"], "value": "far"}
    assert opened("?watch=still")["value"] == "still"
    chosen = {"url__pathname": path, "run-address__search": "", "scale__value": "limit"}
    found = ask("run-address.search", **chosen, watch__value="still")["response"]
    assert found["run-address"]["search"] == "?watch=still"
    assert ask("run-address.search", **chosen, watch__value="far")["response"] == {}


def test_another_ledger_in_its_place_is_another_workspace(home, tmp_path, played):
    workspace = Workspace(home)
    assert workspace.view(1).run.name == "guarded"
    with Ledger(tmp_path / "other") as ledger:
        run = ledger.start("other", "flower", {}, {})
        ledger.append(run, played[0])
    shutil.rmtree(home)
    shutil.move(tmp_path / "other", home)
    view = workspace.view(1)
    assert (view.run.name, len(view.series)) == ("other", 1)


def harm(home, what):
    """Remove a ledger, or put in its place what cannot be read."""
    if what == "newer":
        with closing(sqlite3.connect(home / "ledger.sqlite")) as db:
            db.execute("PRAGMA user_version = 99")
        return
    for file in home.glob("ledger.sqlite*"):
        file.unlink()
    if what != "missing":
        (home / "ledger.sqlite").write_bytes({"corrupt": b"not a database, but long" * 99, "empty": b""}[what])


@pytest.mark.parametrize("what", ["missing", "corrupt", "newer", "empty"])
def test_trouble_is_told_and_passes(what, home, tmp_path, asker):
    shutil.copytree(home, tmp_path / "sound")
    ask = asker(home)
    look = {"url__pathname": "/run/1", "url__search": ""}
    version = ask("version.data", **look)["response"]["version"]["data"]
    harm(home, what)
    told = ask("version.data", **look, version__data=version)["response"]
    assert "version" not in told
    assert "could not be updated" in str(told["problem"])
    assert "unread" in str(ask("version.data", **look)["response"]["body"])
    assert "Traceback" not in str(told)
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(tmp_path / "sound", home)
    well = ask("version.data", **look, problem__children="something")["response"]
    assert well["version"]["data"] == version
    assert well["problem"]["children"] == []


def test_what_cannot_be_shown_is_named_until_there_is_something_new(home, asker, monkeypatch):
    def unreadable(record):
        raise FedwardenError("unknown key 'zebra'")

    monkeypatch.setattr(runs, "tell", unreadable)
    ask, look = asker(home), {"url__pathname": "/run/1", "url__search": ""}
    shown = ask("summary.children", **look, version__data="1")["response"]
    assert "Unknown key 'zebra'. " in str(shown["summary"])
    assert "See all runs." in str(shown["summary"])
    assert shown["glance-part"] == {"hidden": False}  # the rest is there
    nowhere = ask("learning.figure", url__pathname="/run/9", version__data="1", dark__data=False)
    assert "Run 9 does not exist" in str(nowhere["sideUpdate"]["failure"])
    first = ask("version.data", **look)["response"]
    assert first["failure"] == {"children": []}
    again = ask("version.data", **look, version__data=first["version"]["data"])
    assert "failure" not in again.get("response", {})


def test_a_locked_ledger_is_told_of_soon(home, asker, monkeypatch):
    waited = []

    class Spy(Ledger):
        def __init__(self, *args, patience, **kw):
            waited.append(patience)
            super().__init__(*args, patience=patience, **kw)

    monkeypatch.setattr(state, "PATIENCE", 0.1)
    monkeypatch.setattr(state, "Ledger", Spy)
    ask = asker(home)
    with closing(sqlite3.connect(home / "ledger.sqlite", isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute("BEGIN EXCLUSIVE")
        told = ask("version.data", url__pathname="/", url__search="")["response"]
        assert "locked" in str(told["problem"])
        assert set(waited) == {0.1}  # and not the half minute of a run
        db.execute("ROLLBACK")
    assert "version" in ask("version.data", url__pathname="/", url__search="")["response"]


def test_an_unknown_run_is_a_message_even_where_it_is_the_name_of_one(home):
    with Ledger(home) as ledger:
        ledger.start("17", "flower", {}, {})
    with pytest.raises(LedgerError, match="Run 17 does not exist"):
        Workspace(home).view(17)


def test_what_the_operator_says_is_shown_before_a_round_obeys_it(home):
    workspace = Workspace(home)
    with Ledger(home) as ledger:
        ledger.finish(1, "running")
    before, asked = workspace.view(1), Page("run", 1)
    version = runs.version(workspace, asked)
    with Ledger(home) as ledger:
        say(ledger, 1, "exclude", "c", "alice", "maintenance")
    assert runs.version(workspace, asked) != version
    after = workspace.view(1)
    assert (before.said, [s.client for s in after.said]) == ((), ["c"])
    told = str(runs.told(after))
    assert "From the next round on: client c is excluded until it is readmitted (operator alice: maintenance)." in told
