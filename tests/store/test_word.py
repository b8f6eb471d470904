"""The operator's word in the ledger: what holds in which round, taken up once, migrated, repaired, shown."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.types import RoundRecord, Word
from fedwarden.store.export import write_json
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.record import RunRecord
from fedwarden.store.recorder import Recorder
from fedwarden.store.repair import examine, repair
from fedwarden.store.word import Said, latest, notes_of, said_in, say, word_of


def said(number, kind, client="", round=None):
    return Said(number, kind, client, "alice", "because", 1.0, round)


def record(t, excluded=()):
    one = np.ones(2)
    return RoundRecord(t, ("a", "b"), one, one / 2, flagged=np.zeros(2, bool), excluded=excluded)


def state():
    return {"round": 1}


def word(trusted="", excluded="", readmitted="", observing=False):
    return Word(frozenset(trusted), frozenset(excluded), frozenset(readmitted), observing)


def test_the_word_of_every_round_by_hand():
    entries = [
        said(1, "trust", "a", 2),
        said(2, "exclude", "b", 2),
        said(3, "observe", round=3),
        said(4, "untrust", "a", 5),
        said(5, "readmit", "b", 5),
        said(6, "readmit", "c", 5),
        said(7, "enforce", round=6),
        said(8, "exclude", "a"),  # no federation has taken it up
    ]
    assert [word_of(entries, t) for t in range(1, 8)] == [
        word(),
        word("a", "b"),
        word("a", "b", observing=True),
        word("a", "b", observing=True),
        word(readmitted="bc", observing=True),
        word(),
        word(),
    ]
    assert latest(entries) == word(excluded="a")
    assert [note.kind for note in notes_of(entries, 5)] == ["word_untrusted", "word_readmitted", "word_readmitted"]


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (("exclude", "readmit"), word(readmitted="a")),
        (("readmit", "exclude"), word(excluded="a", readmitted="a")),
        (("trust", "untrust"), word()),
        (("trust", "exclude"), word(trusted="a", excluded="a")),
        (("observe", "enforce", "observe"), word(observing=True)),
    ],
)
def test_of_several_words_in_one_round_the_later_counts(kinds, expected):
    entries = [said(i, kind, "" if kind in ("observe", "enforce") else "a", 4) for i, kind in enumerate(kinds, 1)]
    assert word_of(entries, 4) == expected
    assert word_of(entries, 5) == replace(expected, readmitted=frozenset())
    assert word_of(entries, 3) == Word()


def test_a_round_takes_up_what_is_new_once(tmp_path):
    with Recorder(tmp_path) as recorder, Ledger(tmp_path) as operator:
        recorder.start("mine", "test", {})
        assert recorder.word(1) == Word()
        recorder.commit(record(1), state)
        first = say(operator, recorder.run, "trust", "a", "alice", "rare disease")
        assert said_in(operator, recorder.run) == [first]
        assert first.round is None
        assert recorder.word(2) == word("a")
        say(operator, recorder.run, "readmit", "b", "bob", "")
        assert recorder.notes(1) == ()
        assert str(recorder.notes(2)[0]) == "client a is trusted (operator alice: rare disease)"
        recorder.commit(record(2), state)
        assert [recorder.word(t) for t in (3, 4)] == [word("a", readmitted="b"), word("a")]
        assert str(recorder.notes(3)[0]).endswith("(operator bob: no reason given)")
        assert [s.round for s in said_in(operator, recorder.run)] == [2, 3]
        assert [s.number for s in said_in(operator, recorder.run)] == [1, 2]


def cut_off(folder):
    """A run with a checkpoint every three rounds, cut off after its fifth; a word is said during the fourth."""
    with Recorder(folder, every=3) as recorder:
        recorder.start("mine", "test", {})
        for t in range(1, 6):
            assert recorder.word(t).excluded == frozenset("b" if t > 4 else "")
            recorder.commit(record(t), state)
            if t == 4:
                say(recorder.ledger, 1, "exclude", "b", "alice", "")
        raise KeyboardInterrupt


def test_rounds_that_are_played_again_take_up_nothing_new(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        cut_off(tmp_path)
    with Ledger(tmp_path) as operator:
        say(operator, 1, "trust", "a", "alice", "")
    with Recorder(tmp_path, every=3) as recorder:
        recorder.resume(recorder.ledger.run(1), {}, lambda found, t: found)
        words = [recorder.word(t) for t in (4, 5, 6, 7)]
    assert words == [word(), word(excluded="b"), word("a", "b"), word("a", "b")]


def fill(folder):
    with Ledger(folder) as ledger:
        run = ledger.start("mine", "flower", {"rounds": 3}, {})
        for t in (1, 2):
            ledger.append(run, record(t, excluded=("b",) if t == 2 else ()))
        say(ledger, run, "exclude", "b", "alice", 'maintenance, "until\nMonday"')
        say(ledger, run, "trust", "ü ☃", "bob", "")
        ledger.db.execute("UPDATE word SET round = 2 WHERE number = 1")
        return run


def test_a_repaired_ledger_keeps_the_word(tmp_path):
    run = fill(tmp_path)
    with Ledger(tmp_path, read_only=True) as ledger:
        before = said_in(ledger, run)
    findings, saved = examine(tmp_path)
    assert not [f for f in findings if f.fault]
    repair(tmp_path, saved)
    with Ledger(tmp_path, read_only=True) as ledger:
        assert said_in(ledger, run) == before


@pytest.mark.parametrize(
    "damage", ["kind = 'obey'", "client = x'ff'", "said_at = 'today'", "round = 0", "round = 1.5", "operator = x'00'"]
)
def test_a_damaged_word_is_named(tmp_path, damage):
    run = fill(tmp_path)
    with Ledger(tmp_path) as ledger:
        ledger.db.execute(f"UPDATE word SET {damage} WHERE number = 2")
        with pytest.raises(LedgerError, match=f"run {run}, table word: column {damage.split()[0]} should hold"):
            said_in(ledger, run)
    findings, saved = examine(tmp_path)
    assert [(f.kind, f.run) for f in findings if f.fault] == [("word", run)]
    assert len(saved[0].records) == 2


def test_a_record_of_the_run_has_the_word(tmp_path):
    run = fill(tmp_path)
    told = RunRecord.open(run, tmp_path)
    assert [(s.kind, s.client, s.round) for s in told.said] == [("exclude", "b", 2), ("trust", "ü ☃", None)]
    text = io.StringIO()
    write_json(told, text)
    assert [s["by"] for s in json.loads(text.getvalue())["said"]] == ["alice", "bob"]
    assert str(told.said[1]) == "From the next round on: client ü ☃ is trusted (operator bob: no reason given)."
