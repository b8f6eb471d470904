"""A live run and its sinks: nothing is lost, no round waits, and the ledger says when and at which try."""

import logging
import time

import pytest

from fedwarden.sinks import courier
from fedwarden.sinks.alerts import Call, Webhook
from fedwarden.sinks.courier import Live
from fedwarden.sinks.feed import Feed
from fedwarden.store import outbox
from fedwarden.store.ledger import Ledger

from .conftest import Target, round_of, verdict_of
from .test_feed import Memory


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    monkeypatch.setattr(outbox, "FIRST", 0.1)
    monkeypatch.setattr(courier, "LOOK", 0.1)
    monkeypatch.setattr(courier, "END", 1.0)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path) as made:
        yield made


class Played:
    """A run with one sink; it commits rounds and sends them."""

    def __init__(self, ledger, *sinks, run=None):
        self.ledger, self.run = ledger, run or ledger.start("ward", "test", {}, {})
        self.live = Live(map(Feed, sinks))
        self.live.open(ledger, self.run)

    def __call__(self, *records):
        began = time.monotonic()
        for record in records:
            self.ledger.append(self.run, record)
            self.live.send()
        return time.monotonic() - began

    def close(self, state="done"):
        self.live.close(state)
        return outbox.messages(self.ledger, self.run, pending=False)


def soon(what, seconds=90):
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until
        time.sleep(0.02)


OUT = [verdict_of(t, excluded="abcd"[:t]) for t in (1, 2, 3)]


@pytest.mark.parametrize("mood", ["refuses", "hangs", "drips", "answers 500", "redirects"])
def test_nothing_is_lost_and_no_round_waits(target, ledger, mood, caplog):
    target.mood = mood
    if mood == "refuses":
        target.stop()
    run = Played(ledger, Webhook(every=0, timeout=1.0))
    assert run(*OUT) < 20.0  # a target that hangs does so for 30
    soon(lambda: any(m.tries > 1 for m in outbox.messages(ledger)))
    assert target.bodies == []  # nor is a redirect followed
    if mood == "refuses":
        target = Target(target.server_port)
    target.mood = "well"
    soon(lambda: not outbox.messages(ledger))
    messages = [m for m in run.close() if m.number]
    assert all(m.delivered > m.made and m.tries > 1 and m.error for m in messages if m.content["client"] == "a")
    assert [target.told(c) for c in "abc"] == [1, 1, 1]
    words = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert len(words) == 2  # once that it fails, once that it works again
    assert "it stays in the outbox and is tried again" in words[0]
    assert target.url not in words[0]
    target.stop()


def test_a_target_that_answers_twice_is_told_once(target, ledger):
    target.mood = "answers twice"
    run = Played(ledger, Webhook(every=0))
    run(*OUT)
    assert [m.tries for m in run.close() if m.number] == [1] * 4  # and half of the clients are out
    assert [target.told(c) for c in "abc"] == [1, 1, 1]


def test_an_end_that_waits_a_bounded_time_says_what_is_pending_and_a_resumed_run_delivers_it(target, ledger, caplog):
    target.mood = "hangs"
    run = Played(ledger, Webhook(every=0, timeout=0.3))
    run(OUT[0])
    began = time.monotonic()
    run.close("interrupted")
    assert time.monotonic() - began < 5
    line = caplog.messages[-1]
    assert line.startswith("run 1: 2 messages pending for 'webhook' after ")
    assert "the address cannot be reached" in line
    assert "; the run tries again at " in line
    target.mood = "well"
    again = Played(ledger, Webhook(every=0, timeout=30), run=run.run)
    again(OUT[1])
    again.close()
    assert outbox.messages(ledger) == []
    assert target.told("a") == target.told("b") == 1
    assert any("was interrupted" in body["text"] for body in target.bodies)


def test_a_run_that_was_killed_between_a_round_and_its_alert(target, ledger):
    first = Played(ledger, Webhook(every=0))
    first(OUT[0])
    first.close()
    ledger.append(first.run, OUT[1])  # committed, and never sent
    again = Played(ledger, Webhook(every=0), run=first.run)
    again(OUT[2])
    again.close()
    assert [target.told(c) for c in "abc"] == [1, 1, 1]


def test_what_comes_while_one_is_delivered_goes_together(ledger):
    told = []

    def slowly(found):
        told.append(found)
        time.sleep(1.0)

    run = Played(ledger, Call(slowly))
    run(OUT[0])
    soon(lambda: told)
    assert run(*OUT[1:]) < 0.9
    run.close()
    assert [{a.client for a in found if a.kind == "excluded"} for found in told] == [{"a"}, {"b", "c"}]


def test_a_sink_of_rounds_that_was_away_gets_what_it_missed_while_others_go_on(ledger):
    broken, sound = Memory(), Memory()
    broken.away = True
    run = Played(ledger, broken, sound)
    run(round_of(1, "ab"), round_of(2, "ab"))
    soon(lambda: sound.rounds == [1, 2])
    assert "could not be opened: nobody answers" in outbox.messages(ledger)[0].error
    broken.away = False
    soon(lambda: broken.rounds == [1, 2])
    run(round_of(3, "ab"))
    run.close()
    assert broken.rounds == sound.rounds == [1, 2, 3]
    assert broken.states[-1] == sound.states[-1] == "done"


def test_a_sink_that_stays_away_is_pending(ledger, caplog):
    sink = Memory()
    sink.away = True
    run = Played(ledger, sink)
    run(round_of(1, "ab"))
    (message,) = run.close()
    assert (message.number, message.round, message.delivered) == (0, 1, None)
    assert "run 1: rounds pending for 'Memory' after" in caplog.messages[-1]


def test_the_pauses_grow_to_an_hour(ledger, monkeypatch):
    monkeypatch.setattr(outbox, "FIRST", 5.0)
    outbox.put(ledger, 1, "mine", {}, 1, [{}])
    now, pauses = time.time(), []
    monkeypatch.setattr(outbox.time, "time", lambda: now)
    for _ in range(15):
        outbox.take(ledger, 1, "mine")
        pauses.append(round(outbox.due(ledger, 1, "mine") - now))
    assert pauses[:4] == [5, 10, 20, 40]
    assert pauses[-2:] == [3600, 3600]


def test_clients_that_are_left_out_are_told_once(ledger, caplog):
    live = Live([Feed(Memory(), most=2)])
    run = ledger.start("ward", "test", {}, {})
    live.open(ledger, run)
    for t in (1, 2):
        ledger.append(run, round_of(t, "abc"))
        live.send()
    live.close("done")
    assert ["most=2" in message for message in caplog.messages] == [True]
