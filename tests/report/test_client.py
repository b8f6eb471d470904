"""One client's story, as a page to pass on to it."""

from dataclasses import replace

import numpy as np
import pytest

from fedwarden.cli import main
from fedwarden.core.errors import ConfigError
from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.report.client import client_page, tell_client
from fedwarden.store.ledger import Ledger
from fedwarden.store.record import RunRecord

IDS = ("Basel", "Bern", "Chur", "Davos", "Genf")
FAR = np.array([9.0, 1.0, 1.1, 0.9, 1.2])


@pytest.fixture
def home(tmp_path):
    """Basel is flagged in round 1, copies Bern in round 2, is rejected in rounds 3 and 4, and excluded by alice."""
    watch = WatchRecord("far", FAR, FAR, 6.0, FAR > 6, None, {}, "its update lies far out")
    calm = replace(watch, signal=FAR[::-1], scores=FAR[::-1], flagged=FAR > 99)
    one = RoundRecord(1, IDS, np.ones(5), np.ones(5), (watch,), FAR > 6)
    two = RoundRecord(
        2, IDS, np.ones(5), np.ones(5), (calm,), notes=(Note.of("copies_share", "Basel", "Bern", leading=1),)
    )
    three = RoundRecord(3, IDS[1:], np.ones(4), np.ones(4), rejected=(Rejection("Basel", Note.of("sent_nothing")),))
    long = Note.of("update_too_long", times=77.0, most=50.0)
    four = replace(three, round=4, rejected=(Rejection("Basel", long),))
    said = Note.of("word_excluded", "Basel", by="alice", reason="a secret")
    with Ledger(tmp_path) as ledger:
        run = ledger.start("ward", "nvflare", {}, {})
        for record in (one, two, three, four, replace(three, round=5, rejected=(), excluded=("Basel",), notes=(said,))):
            ledger.append(run, record)
    return tmp_path


def test_what_was_measured_when_and_nothing_of_the_others_but_counts(home):
    record = RunRecord.open(1, home)
    sentences, rounds = tell_client(record, "Basel")
    assert sentences[0].endswith("5 rounds with 5 clients.")
    assert sentences[1] == "Client Basel took part in 2 rounds. Excluded since round 5."
    assert rounds == [
        ["1", "flagged", "its update lies far out (far 9)"],
        ["2", "in the model", "its update was identical to that of 1 other client"],
        ["3", "rejected", "sent nothing"],
        ["4", "rejected", "its reply was outside of what is accepted"],
        ["5", "excluded", "the operator decided so"],
    ]
    whole, _ = client_page(record, "Basel")
    assert not any(word in whole for word in (*IDS[1:], "limit", "alice", "secret", "50", "MADs"))
    assert "tell the operator" in whole
    assert "<script" not in whole


def test_thresholds_are_told_where_they_are_asked_for(home):
    _, rounds = tell_client(RunRecord.open(1, home), "Basel", thresholds=True)
    assert rounds[0][2] == "its update lies far out (far 9, limit 6)"
    assert "50 times" in rounds[3][2]


def test_a_client_of_which_there_is_nothing_to_say_has_nothing_to_do(home):
    sentences, rounds = tell_client(RunRecord.open(1, home), "Chur")
    assert (sentences[1], rounds) == ("Client Chur took part in 5 rounds. No watch flagged it.", [])
    assert "What to do" not in client_page(RunRecord.open(1, home), "Chur")[0]


def test_the_command_writes_the_page_and_names_the_nearest_client(home, tmp_path, capsys):
    command = ["report", "1", "--home", str(home), "-o", str(tmp_path / "basel.html"), "--client"]
    assert main([*command, "Basel"]) == 0
    assert "Round 1, flagged: its update lies far out (far 9)." in capsys.readouterr().out
    assert "<h1>Client Basel in run 1</h1>" in (tmp_path / "basel.html").read_text()
    with pytest.raises(ConfigError, match="run 1 has no client 'Base'; did you mean 'Basel'"):
        tell_client(RunRecord.open(1, home), "Base")
