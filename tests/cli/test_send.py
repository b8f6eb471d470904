"""``fedwarden send``, and ``[[sinks]]`` in a scenario: the same values either way."""

import json
import sys
import threading
import time
from dataclasses import asdict

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedwarden.sinks import courier
from fedwarden.sinks.alerts import COMMAND, Alert, Call
from fedwarden.sinks.feed import Feed
from fedwarden.store import outbox
from fedwarden.store.ledger import Ledger


def scalars(folder):
    (run,) = folder.iterdir()
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}).Reload()
    return {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture
def sunk(tiny, tmp_path):
    """A scenario that sends to TensorBoard as it runs."""
    tiny.write_text(tiny.read_text() + f'\n[[sinks]]\nname = "tensorboard"\nfolder = "{tmp_path / "live"}"\n')
    return tiny


def test_a_live_run_and_a_recorded_one_send_the_same(sunk, call, call_json, tmp_path):
    assert call("run", sunk, "-q")[0] == 0
    sent = call_json("send", 1, "--to", "tensorboard", "--set", f"folder={tmp_path / 'after'}")
    assert sent == {"run": 1, "name": "tiny", "to": "tensorboard", "sent": 3}
    live = scalars(tmp_path / "live")
    assert live == scalars(tmp_path / "after")
    assert [t for t, _ in live["metric/accuracy"]] == [1, 2, 3]
    assert call_json("send", 1, "--to", "tensorboard", "--set", f"folder={tmp_path / 'live'}")["sent"] == 0


def test_a_run_may_be_resumed_with_other_sinks(tiny, call, tmp_path):
    assert call("run", tiny, "-q", "--set", "rounds=2")[0] == 0
    folder = tmp_path / "late"
    table = f'sinks=[{{name = "tensorboard", folder = "{folder}"}}]'
    assert call("run", tiny, "-q", "--resume", "--set", table)[0] == 0
    assert [t for t, _ in scalars(folder)["round/clients"]] == [1, 2, 3]


def test_a_sink_that_fails_is_pending_and_the_run_goes_on(tiny, call, call_json, tmp_path, monkeypatch):
    monkeypatch.setattr(courier, "END", 0.5)
    monkeypatch.setattr(courier, "LOOK", 0.1)  # between two tries, each of which opens the target and fails to write
    (tmp_path / "taken").write_text("a file, not a folder")
    table = f'sinks=[{{name = "tensorboard", folder = "{tmp_path / "taken"}"}}]'
    code, _, err = call("run", tiny, "--set", table)
    assert code == 0
    first, last = [line for line in err.splitlines() if "warning run 1: " in line]
    assert "the sink 'tensorboard' could not take round 1" in first
    assert last.endswith("try now with: fedwarden send 1 --pending")
    assert call_json("runs", "--long")["runs"][0]["pending"] == 1
    assert "1 --pending" in call("show", 1)[2]
    code, out, _ = call("send", "--pending")
    assert code == 1
    assert "rounds pending for 'tensorboard' after " in out
    assert out.endswith("; tried again when you repeat this command; --drop gives it up\n")
    (tmp_path / "taken").unlink()
    assert call("send", "tiny", "--pending")[:2] == (0, "run 1: rounds delivered to 'tensorboard'\n")
    assert [t for t, _ in scalars(tmp_path / "taken")["metric/accuracy"]] == [1, 2, 3]
    assert call("send", "--pending")[:2] == (0, "nothing is pending\n")


def test_pending_alerts_are_sent_afterwards(workspace, call, tmp_path, monkeypatch):
    script = tmp_path / "page.py"
    script.write_text("import pathlib, sys\npathlib.Path(sys.argv[1]).write_text(sys.stdin.read())\n")
    feed, mine = Feed("command"), Feed(Call(print))
    alert = asdict(Alert("excluded", "ward", 1, "a", "client a is excluded"))
    with Ledger(workspace) as ledger:
        run = ledger.start("ward", "test", {}, {})
        outbox.put(ledger, run, "command 2", feed.table, 1, [alert])
        outbox.put(ledger, run, "Call", mine.table, 1, [alert])
    code, _, err = call("send", "--pending")
    assert code == 1
    assert "FEDWARDEN_ALERT_COMMAND, which is not set" in err
    assert "there is no sink 'Call'" in err  # a function of one's own lives in its run alone
    monkeypatch.setenv(COMMAND, f"{sys.executable} {script} {tmp_path / 'told.json'}")
    assert call("send", "--pending", "--json")[0] == 1
    assert json.loads((tmp_path / "told.json").read_text())["alerts"][0]["client"] == "a"
    with Ledger(workspace, read_only=True) as ledger:
        (message,) = [m for m in outbox.messages(ledger, pending=False) if m.sink == "command 2" and m.number]
    assert message.tries == 2
    assert message.delivered > message.made
    assert call("send", "--pending", "--drop")[:2] == (0, "run 1: 1 message given up for 'Call'\n")
    with Ledger(workspace, read_only=True) as ledger:
        (message,) = [m for m in outbox.messages(ledger, pending=False) if m.sink == "Call" and m.number]
    assert message.delivered == 0
    assert message.error.startswith("given up by operator ")
    assert call("send", "--pending")[:2] == (0, "nothing is pending\n")


def test_alerts_without_an_address_end_a_run_before_it_starts(tiny, call, workspace):
    code, _, err = call("run", tiny, "--set", 'sinks=["webhook"]')
    assert code == 2
    assert "the environment variable FEDWARDEN_WEBHOOK, which is not set" in err
    assert not (workspace / "ledger.sqlite").exists()


def test_a_sink_that_a_scenario_misspells_ends_it_before_it_starts(tiny, call, workspace):
    code, _, err = call("run", tiny, "--set", 'sinks=["tensorbord"]')
    assert code == 2
    assert "did you mean 'tensorboard'?" in err
    assert not (workspace / "ledger.sqlite").exists()


def test_what_cannot_be_sent_is_one_line(recorded, call, tmp_path):
    (tmp_path / "taken").write_text("")
    code, _, err = call("send", 1, "--to", "tensorboard", "--set", f"folder={tmp_path / 'taken'}", "--home", recorded)
    assert code == 2
    assert err.startswith("error: the sink 'tensorboard' could not take round 1: ")
    assert "has no option 'foldr'" in call("send", 1, "--to", "tensorboard", "--set", "foldr=x", "--home", recorded)[2]


def test_following_a_run_until_it_ends(recorded, workspace, call, tmp_path, monkeypatch):
    monkeypatch.setattr("fedwarden.cli.send.POLL", 0.05)
    with Ledger(recorded, read_only=True) as past, Ledger(workspace) as ledger:
        records = past.records(1)
        run = ledger.start("followed", "flower", {}, {})
        ledger.append(run, records[0])

    def go_on():
        with Ledger(workspace) as ledger:
            for record in records[1:]:
                time.sleep(0.2)
                ledger.append(run, record)
            ledger.finish(run, "done")

    writer = threading.Thread(target=go_on)
    writer.start()
    code, out, _ = call("send", run, "--to", "tensorboard", "--follow", "--set", f"folder={tmp_path / 'tb'}")
    writer.join()
    assert (code, out.strip()) == (0, "run 1  followed: 3 rounds sent to tensorboard")
    assert [t for t, _ in scalars(tmp_path / "tb")["round/clients"]] == [1, 2, 3]
