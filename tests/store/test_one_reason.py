"""One sentence tells of a client, the same in show, JSON, report, dashboard and alerts, and it is true."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.core.types import RoundRecord, WatchRecord, Word
from fedwarden.store.ledger import Ledger
from fedwarden.store.round import NOTES
from one_story import agree

IDS, D = tuple("abcdefghijkl"), 60
FAR = fw.Watch("centroid_distance", "raw", {"name": "robust_z", "limit": 6.0}, name="far")
TURNED = fw.Watch("direction", "raw", {"name": "robust_z", "limit": 6.0}, name="turned")
GUARDS = {
    "auto": lambda: fw.Warden.preset("auto", secret=1),
    "alike": lambda: fw.Warden.preset("auto", secret=1, alike=True),
    "pid_made": lambda: fw.Warden.preset("pid_made", k=1.5),
    "watch": lambda: fw.Warden.preset("watch"),
    "groups": lambda: fw.Warden.preset("groups"),
    "none": lambda: fw.Warden.preset("none"),
    "suspended on trial": lambda: fw.Warden([FAR], {"name": "quarantine", "parole": 2}),
    "both watches": lambda: fw.Warden([FAR, TURNED], "exclude", combine="all"),
    "multi_krum": lambda: fw.Warden([FAR], "observe", {"name": "multi_krum", "f": 3, "m": 6}),
}


def attacked(how, t):
    """The updates of a round: three attackers, of which the last pauses in round 4."""
    rng = np.random.default_rng(t)
    rows = np.ones((len(IDS), D)) + 0.3 * rng.normal(size=(len(IDS), D))
    for i in range(3 if t != 4 else 2):
        if how == "flip":
            rows[i] *= -3.0
        elif how == "long":
            rows[i] *= 20.0
        elif how == "copy":
            rows[i] = rows[0]
        elif how == "broken" and t > 1 and i == 0:
            rows[i] = np.nan
    return rows


def play(warden, how, words=None, rounds=6):
    records = []
    for t in range(1, rounds + 1):
        word, notes = (words or {}).get(t, (Word(), ()))
        rows, ids = attacked(how, t), [c for c in IDS if warden.asks(c, word)]
        updates = fw.Updates.of(rows[[IDS.index(c) for c in ids]])
        record = warden.step(fw.Cohort(t, ids, updates, np.full(len(ids), 10.0)), word=word).record
        records.append(replace(record, notes=(*notes, *record.notes)))
    return records


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def recorded(home, *runs):
    with Ledger(home) as ledger:
        numbers = [ledger.start("told", "test", {}, {}) for _ in runs]
        for run, records in zip(numbers, runs, strict=True):
            for record in records:
                ledger.append(run, record)
    return numbers


@pytest.mark.parametrize("guard", GUARDS)
def test_of_every_preset_and_attack(guard, home):
    attacks = ("flip", "long", "copy", "broken")
    runs = recorded(home, *(play(GUARDS[guard](), how) for how in attacks))
    found = {how: agree(home, run) for how, run in zip(attacks, runs, strict=True)}
    if guard != "none":
        assert set("ab") <= found["flip"].keys() | found["long"].keys()


def test_of_the_operators_word(home):
    def said(kind, client):
        return Note.of(NOTES[kind], client, by="operator alice", reason="maintenance")

    out = {
        2: (Word(excluded=frozenset("k")), (said("exclude", "k"),)),
        3: (Word(excluded=frozenset("k"), suspended=frozenset("l")), (said("suspend", "l"),)),
        **{t: (Word(excluded=frozenset("k"), trusted=frozenset("a")), (said("trust", "a"),)) for t in (4, 5)},
    }
    (run,) = recorded(home, play(GUARDS["suspended on trial"](), "flip", out, rounds=5))
    assert agree(home, run)["k"] == "Client k was excluded in round 2: operator alice: maintenance."


def test_of_a_run_that_goes_on_from_what_another_one_knew(home):
    held = Note.of(NOTES["suspend"], "l", by="run 1", reason="as run 1 (before) left it")
    words = {1: (Word(suspended=frozenset("l")), (held,))}
    (run,) = recorded(home, play(fw.Warden([FAR], {"name": "quarantine", "parole": 9}), "flip", words, rounds=2))
    told = agree(home, run)["l"]
    assert told == "Client l was suspended in round 1: run 1: as run 1 (before) left it."


@pytest.mark.parametrize("proven", [False, True])
def test_of_measured_harm(proven, home):
    """Harm puts a client in doubt before it is proven; distance, which is not unusual, is not held against it."""
    harm = np.array([9.0, *(0.1 * np.arange(11))])
    flags = np.arange(12) == 0
    watch = WatchRecord("harm", harm, harm, 12.0, flags & proven, words="the model is worse with it")
    calm = WatchRecord("distance", harm[::-1], harm[::-1], 99.0, flags & False, words="it lies far out")
    doubt = Note.of("on_trial", "a", watches=("harm",), words="the model is worse with it", harmful=True)
    record = RoundRecord(1, IDS, np.ones(12), np.ones(12), (watch, calm), flags, notes=(doubt,))
    if proven:
        record = replace(record, notes=(), excluded=("a",), weights=np.where(flags, 0.0, 1.0))
    told = agree(home, recorded(home, [record])[0])["a"]
    assert "(harm 9, limit 12, " in told if proven else "(harm 9, proven above 12, " in told
    assert "far out" not in told


@pytest.mark.parametrize("schema", [4, 5, 6, 7, 8])
def test_of_ledgers_of_earlier_schemas(schema, home):
    packed = Path(__file__).parent / "ledgers" / f"schema-{schema}.sqlite.gz"
    (home / "ledger.sqlite").write_bytes(gzip.decompress(packed.read_bytes()))
    assert agree(home, 1)
