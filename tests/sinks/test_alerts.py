"""Alerts: the texts for given rounds, and a real server and a real command that receive them."""

import json
import shlex
import sys
import threading
from dataclasses import asdict, replace

import numpy as np
import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord
from fedwarden.sinks.alerts import ADDRESS, COMMAND, KEY, KINDS, Alert, Call, Command, Webhook, alerts, for_chat
from fedwarden.sinks.courier import Live
from fedwarden.sinks.feed import Feed
from fedwarden.store import outbox
from fedwarden.store.ledger import Ledger

from .conftest import verdict_of as record

NOBODY = RoundRecord(0, (), np.zeros(0), np.zeros(0))


def test_what_is_told_of_a_round_by_hand():
    first = alerts(record(1, flagged="ab", excluded="ac", suspended="c"), "ward", NOBODY, ("flagged", "excluded"))
    assert [(a.kind, a.client) for a in first] == [("excluded", "a"), ("flagged", "b")]
    assert str(first[0]).startswith("ward, round 1: Client a was excluded in round 1: it lies far away")
    before = record(1, excluded="ac", suspended="ac")
    then = alerts(record(2, excluded="a"), "ward", before)
    assert [(a.kind, a.client) for a in then] == [("excluded", "a"), ("let in", "c")]
    assert alerts(record(2, excluded="a"), "ward", None) == []  # who was out before is no news
    unknown = alerts(record(2, flagged="a", excluded="ab", suspended="a"), "ward", None)
    assert [(a.kind, a.client) for a in unknown] == [("suspended", "a"), ("promise", "")]  # better twice than never
    stalled = alerts(record(3, weights=[0, 0, 0, 0]), "ward", NOBODY)
    assert [a.kind for a in stalled] == ["stalled"]


def test_a_name_cannot_steer_a_terminal_or_a_chat():
    alert = Alert(
        "excluded",
        "<!here> run",
        1,
        "a",
        "client \x1b[2J <!channel> [a](http://b.example) is out, @all @mallory evil.example *_~x~_*",
    )
    assert "\x1b" not in str(alert)
    text = for_chat(str(alert))
    assert "<" not in text
    for lively in ("](", "://", "@all", "@mallory", "evil.example", "*", "_", "~"):
        assert lively in str(alert)
        assert lively not in text


def played(ledger, sink, *records, state="done"):
    run = ledger.start("ward", "test", {}, {})
    live = Live([Feed(sink)])
    live.open(ledger, run)
    for r in records:
        ledger.append(run, r)
        live.send()
    live.close(state)


def test_a_chat_a_pager_and_json_receive_them(target, ledger, monkeypatch):
    monkeypatch.setenv(KEY, "secret-key")
    for form in ("chat", "pager", "json"):
        played(ledger, Webhook(form=form, every=0), record(1), record(2, flagged="a", excluded="a"))
    chat, pager, whole = target.bodies
    assert chat["text"].startswith("run 1 (ward), round 2: ")
    assert "Client a was excluded in round 2" in chat["text"]
    assert pager["routing_key"] == "secret-key"
    assert "Client a" in pager["payload"]["summary"]
    assert whole["alerts"][0]["client"] == "a"


def test_a_run_that_fails_is_told(target, ledger):
    played(ledger, Webhook(every=0), record(1), state="failed")
    assert target.bodies[0]["text"].endswith("the run failed")


def test_a_command_gets_them_on_standard_input(ledger, tmp_path, monkeypatch):
    script = tmp_path / "page.py"
    script.write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text(sys.stdin.read())\n")
    monkeypatch.setenv(COMMAND, f"{sys.executable} {script} {tmp_path / 'told.json'}")
    played(ledger, Command(every=0), record(1, excluded="b"))
    assert json.loads((tmp_path / "told.json").read_text())["alerts"][0]["client"] == "b"


def test_a_command_that_leaves_something_running_has_succeeded(ledger, monkeypatch):
    """What it left holds its output open."""
    script = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(20)'])"
    monkeypatch.setenv(COMMAND, shlex.join([sys.executable, "-c", script]))
    Command(timeout=15.0).deliver([Alert("excluded", "run 1", 1, "a", "client a is excluded")])


def test_where_they_go_is_in_the_environment_alone(monkeypatch):
    monkeypatch.delenv(ADDRESS, raising=False)
    with pytest.raises(ConfigError, match="FEDWARDEN_WEBHOOK, which is not set"):
        Webhook().target()
    monkeypatch.setenv(ADDRESS, "file:///etc/passwd")
    with pytest.raises(ConfigError, match="begins with https://"):
        Webhook().target()
    for wrong in ({"kinds": ("gone",)}, {"kinds": "excluded"}, {"every": -1.0}, {"form": "fax"}, {"patience": 0}):
        with pytest.raises(ValueError, match="got"):
            Webhook(**wrong)


def test_a_client_in_doubt_is_told_once(ledger):
    """Also where it misses a round, or comes out of doubt and back."""
    told = []
    doubt = {kind: Note.of(kind, "a", watches=("far",), words="it lies far away") for kind in ("on_trial", "left_out")}
    rounds = [
        replace(record(t, flagged="a" if kind else ""), notes=(doubt[kind],) if kind else ())
        for t, kind in enumerate(("on_trial", "left_out", "", "on_trial"), 1)
    ]
    played(ledger, Call(told.extend), *rounds)
    assert [(a.kind, a.client, a.round) for a in told] == [("in doubt", "a", 1)]
    assert told[0].words.startswith("Client a was on trial in round 1: it lies far away (far 5, limit 2, ")
    assert told[0].advice.startswith("Client a is different, harm not shown. If you know why")
    assert told[0].advice.endswith("run `fedwarden trust 1 a`.")


@pytest.mark.parametrize(("state", "advised"), [("done", False), ("interrupted", True)])
def test_an_alert_that_arrives_late_advises_what_still_helps(ledger, target, state, advised):
    feed, run = Feed("webhook"), ledger.start("ward", "test", {}, {})
    alert = Alert("in doubt", "run 1 (ward)", 1, "a", "Client a is in doubt.", "Run `fedwarden trust 1 a`.")
    outbox.put(ledger, run, feed.name, feed.table, 1, [asdict(alert)])
    ledger.finish(run, state)
    feed.deliver(ledger, run, feed.name)
    (body,) = target.bodies
    assert body["text"] == "run 1 (ward), round 1: Client a is in doubt." + " Run `fedwarden trust 1 a`." * advised


def test_a_client_that_falls_silent_and_a_promise_that_ends():
    lost = replace(record(2), rejected=(Rejection("d", Note.of("no_answer")),))
    found = alerts(lost, "r", record(1), KINDS)
    assert [(a.kind, a.client) for a in found] == [("silent", "d")]
    assert alerts(replace(lost, round=3), "r", lost, KINDS) == []  # told once
    half = record(3, excluded="ab")
    assert [a.kind for a in alerts(half, "r", record(2, excluded="a"))] == ["excluded", "promise"]
    assert "2 of 4 clients are excluded or suspended" in alerts(half, "r", record(2, excluded="a"))[1].words
    unsure = replace(record(4), notes=(Note.of("too_few", many=2, quorum=3),))
    assert [a.kind for a in alerts(unsure, "r", record(3))] == ["promise"]
    assert alerts(replace(unsure, round=5), "r", unsure) == []


def test_a_round_that_does_not_come_is_told_once(tmp_path):
    told, heard = [], threading.Event()

    def hear(found):
        told.extend(found)
        heard.set()

    with Ledger(tmp_path) as ledger:
        run = ledger.start("slow", "x", {}, {})
        live = Live([Feed(Call(hear, patience=0.3))])
        live.open(ledger, run)
        ledger.append(run, record(1))
        live.send()
        assert heard.wait(30)
        heard.clear()
        assert not heard.wait(1.0)
        live.close("done")
    assert [(a.kind, a.round) for a in told] == [("stalled", 1)]
    assert told[0].words.startswith("no round has been finished for")


def test_an_alert_tells_an_exclusion_by_the_operator_from_one_by_a_watch():
    note = Note.of("word_excluded", "b", by="operator alice", reason="maintenance")
    now = replace(record(2, flagged="a", excluded="ab"), notes=(note,))
    told = {alert.client: alert.words for alert in alerts(now, "ward", record(1)) if alert.kind == "excluded"}
    assert told["a"].startswith("Client a was excluded in round 2: it lies far away")
    assert told["b"] == "Client b was excluded in round 2: operator alice: maintenance."
