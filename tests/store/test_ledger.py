"""The ledger: schema, atomic rounds, records that come back as they went in, and readers beside a writer."""

import json
import math
import sqlite3
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from threading import Barrier

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.types import Observation, WatchRecord
from fedwarden.store.ledger import Ledger, LedgerError, home
from fedwarden.store.schema import ROUND_TABLES, SCHEMA

NAN, INF = math.nan, math.inf


def record(t=1, scale=1.0):
    """A round with everything in it: three clients, one rejected, two watches, odd numbers."""
    first = WatchRecord(
        "centroid_distance", scale * np.array([1.0, NAN, 1 / 3]), np.array([INF, NAN, -INF]), 0.1 + 0.2,
        np.array([True, False, False]), fw.Note.of("masking", k=2.33, most=3, n=20, hidden=4, percent=15.6),
        {"layer 2": np.array([0.5, NAN, 1e-9]), "layer 1": np.zeros(3)}, "its weights moved",
    )  # fmt: skip
    second = WatchRecord(
        "a second", np.zeros(3), np.array([5e-324, 1.7976931348623157e308, -0.5]), INF, np.ones(3, bool)
    )
    return fw.RoundRecord(
        round=t,
        client_ids=("a", "b 'quoted'; DROP TABLE run", "ü ☃"),
        num_examples=np.array([10.0, NAN, 1e18]),
        weights=np.array([0.0, 0.0, 1.0]),
        watches=(first, second),
        flagged=np.array([True, False, False]),
        excluded=("ü ☃", "a"),
        rejected=(
            fw.Rejection("b 'quoted'; DROP TABLE run", fw.Note.of("layer_shape", layer=0, shape=(4,), expected=(2, 2))),
            fw.Rejection("nobody", fw.Note.of("count_not_positive", count=-INF)),
        ),
        notes=(
            fw.Note.text("one"),
            fw.Note.text("one"),
            fw.Note.of("let_in", "a", "ü ☃"),
            fw.Note.of("evaluation_left_out", "a", cause=fw.Note.of("idle")),
        ),
        metrics={"loss": NAN, "accuracy": 2 / 3, "worst": INF},
        reported={"train/loss": {"a": 0.1 + 0.2, "nobody": -INF, "ü NaN": NAN}, "reply/bytes": {}},
    )


def same(a, b):
    np.testing.assert_equal(asdict(a), asdict(b))


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path) as opened:
        yield opened


@pytest.fixture
def run(ledger):
    return ledger.start("mine", "here", {"rounds": 3, "nested": {"a": [1, None]}}, {"python": "3"})


def count(ledger):
    return {t: ledger.db.execute(f"SELECT COUNT(*) FROM {t}").fetchone()[0] for t in ROUND_TABLES}


def test_a_record_comes_back_as_it_went_in(ledger, run):
    for t, scale in ((1, 1.0), (2, 1e300)):
        ledger.append(run, record(t, scale))
    for found in (ledger.records(run), [ledger.record(run, 1), ledger.record(run, 2)]):
        same(found[0], record(1))
        same(found[1], record(2, 1e300))
    for value in (found[0].num_examples, found[0].weights, found[0].watches[0].scores):
        assert value.dtype == np.float64
    assert found[0].flagged.dtype == bool


def test_the_loudest_watch_flagged_most_clients_and_not_one_most_often(ledger, run):
    def flags(t, ids, **flagged):
        none = np.zeros(len(ids))
        watches = [
            WatchRecord(name, none, none, 1.0, np.array([c in who for c in ids])) for name, who in flagged.items()
        ]
        return fw.RoundRecord(t, tuple(ids), none, none, tuple(watches))

    assert ledger.loudest(run) is None
    ledger.append(run, flags(1, "abc", still="", often="", wide=""))
    assert ledger.loudest(run) == "still"
    ledger.append(run, flags(2, "abc", still="", often="b", wide="c"))
    assert ledger.loudest(run) == "often"
    ledger.append(run, flags(3, "bac", still="", often="b", wide="c"))  # b and c at other places than before
    ledger.append(run, flags(4, "dcb", still="", often="b", wide="d"))
    assert ledger.loudest(run) == "wide"


def test_appending_again_replaces_the_round(ledger, run):
    ledger.append(run, record())
    before = count(ledger)
    ledger.append(run, record())
    assert count(ledger) == before
    same(ledger.record(run, 1), record())
    shorter = fw.RoundRecord(1, ("a",), np.ones(1), np.ones(1), flagged=np.zeros(1, bool))
    ledger.append(run, shorter)
    same(ledger.record(run, 1), shorter)
    assert count(ledger) == {"round": 1, "watch": 0, "remark": 0, "report": 0}


class Bad(dict):
    """Metrics that fail in the middle of a write."""

    def __init__(self, error):
        super().__init__(a=1.0)
        self.error = error

    def items(self):
        raise self.error


NULL = (replace(record().watches[0], words=None),)  # in a column that has none


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(
    ("error", "broken"),
    [(e, {"metrics": Bad(e())}) for e in (KeyboardInterrupt, ValueError, MemoryError)]
    + [(LedgerError, {"watches": NULL})],
)
def test_a_round_is_written_whole_or_not_at_all(error, broken, before, ledger, run):
    """Ctrl-C falls where it wants; the run must still be able to say that it was interrupted."""
    if before:
        ledger.append(run, record())
    rows = count(ledger)
    with pytest.raises(error):
        ledger.append(run, replace(record(), **broken))
    assert not ledger.db.in_transaction
    assert count(ledger) == rows
    ledger.finish(run, "interrupted")
    assert ledger.run(run).state == "interrupted"
    if before:
        same(ledger.record(run, 1), record())


def test_a_reader_sees_the_last_committed_round_while_a_writer_writes(tmp_path, ledger, run):
    ledger.append(run, record())
    ledger.db.execute("BEGIN IMMEDIATE")
    ledger.db.execute("DELETE FROM watch")
    ledger.db.execute("INSERT INTO round VALUES (?, 2, 0, '{}', x'', x'', x'', x'', x'', x'')", (run,))
    with Ledger(tmp_path, create=False) as reader:
        assert reader.last_round(run) == 1
        same(reader.record(run, 1), record())
        assert [r.rounds for r in reader.runs()] == [1]
        ledger.db.execute("COMMIT")
        assert reader.last_round(run) == 2


def test_many_may_open_a_new_workspace_at_once(tmp_path, monkeypatch):
    """Two runs started side by side in a fresh folder."""
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **kw: connect(*args, **{**kw, "timeout": 5}))
    for attempt in range(3):
        together = Barrier(4)

        def open_one(_, folder=tmp_path / str(attempt), together=together):
            together.wait()
            with Ledger(folder) as ledger:
                return ledger.start("mine", "here", {}, {})

        with ThreadPoolExecutor(4) as threads:
            assert sorted(threads.map(open_one, range(4))) == [1, 2, 3, 4]


def version(folder):
    db = sqlite3.connect(folder / "ledger.sqlite")
    try:
        return db.execute("PRAGMA user_version").fetchone()[0]
    finally:
        db.close()


def test_the_schema_has_a_version(tmp_path, ledger):
    assert version(tmp_path) == SCHEMA
    assert ledger.db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"


def test_an_empty_file_becomes_a_ledger(tmp_path):
    (tmp_path / "ledger.sqlite").touch()
    with Ledger(tmp_path, create=False) as ledger:
        assert ledger.runs() == []
    assert version(tmp_path) == SCHEMA


def test_a_newer_schema_is_refused(tmp_path, ledger):
    ledger.db.execute("PRAGMA user_version = 99")
    ledger.close()
    with pytest.raises(LedgerError, match=rf"has schema 99; this version of fedwarden knows up to {SCHEMA}"):
        Ledger(tmp_path)
    assert version(tmp_path) == 99  # and left alone


def test_runs_are_found_by_number_by_name_or_as_the_latest(ledger):
    one, two, three = (ledger.start(name, "here", {}, {}) for name in ("a", "b", "a"))
    assert [ledger.run(x).id for x in (one, str(two), "a", "b", None)] == [one, two, three, two, three]
    assert [r.id for r in ledger.runs()] == [three, two, one]
    with pytest.raises(LedgerError, match=r"no run c in .*; there are: 3 \(a\), 2 \(b\), 1 \(a\)"):
        ledger.run("c")


def test_the_life_of_a_run(ledger, run):
    found = ledger.run(run)
    assert (found.name, found.state, found.engine, found.rounds, found.summary) == ("mine", "running", "here", 0, {})
    assert (found.config, found.versions) == ({"rounds": 3, "nested": {"a": [1, None]}}, {"python": "3"})
    ledger.append(run, record())
    ledger.finish(run, "done", {"accuracy": 0.5, "excluded": {"a": 2}})
    found = ledger.run(run)
    assert (found.state, found.rounds, found.summary) == ("done", 1, {"accuracy": 0.5, "excluded": {"a": 2}})
    ledger.reopen(run, {"rounds": 9})
    assert (ledger.run(run).state, ledger.run(run).config) == ("running", {"rounds": 9})
    ledger.finish(run, "failed")
    assert ledger.run(run).summary == {"accuracy": 0.5, "excluded": {"a": 2}}


def test_rounds_of_a_run(ledger, run):
    other = ledger.start("other", "here", {}, {})
    assert ledger.last_round(run) == 0
    assert ledger.records(run) == []
    for t in (3, 1, 2):
        ledger.append(run, record(t))
    ledger.append(other, record(7))
    assert [r.round for r in ledger.records(run)] == [1, 2, 3]
    assert ledger.last_round(run) == 3
    with pytest.raises(LedgerError, match="run 1 has no round 4"):
        ledger.record(run, 4)


def test_a_ledger_is_read_without_being_written(tmp_path):
    for how in ({"read_only": True}, {"create": False}):
        with pytest.raises(LedgerError, match=r"no ledger in .*nowhere; run something first, or set FEDWARDEN_HOME"):
            Ledger(tmp_path / "nowhere", **how)
    assert not (tmp_path / "nowhere").exists()
    with Ledger(tmp_path) as ledger:
        ledger.start("r", "test", {}, {})
        with Ledger(tmp_path, read_only=True) as reader:
            assert [r.name for r in reader.runs()] == ["r"]
            with pytest.raises(LedgerError, match="readonly"):
                reader.start("s", "test", {}, {})
        for version, word in ((0, "fedwarden doctor"), (1, "before the first release"), (99, "newer")):
            ledger.db.execute(f"PRAGMA user_version = {version}")
            with pytest.raises(LedgerError, match=word):
                Ledger(tmp_path, read_only=True)


def test_the_workspace(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDWARDEN_HOME", str(tmp_path / "mine"))
    assert home() == tmp_path / "mine"
    with Ledger() as ledger:
        assert ledger.path == tmp_path / "mine" / "ledger.sqlite"
    monkeypatch.delenv("FEDWARDEN_HOME")
    assert str(home()) == "fedwarden-runs"


def test_what_is_written_can_be_read_without_fedwarden(tmp_path, ledger, run):
    """Plain tables and packed numbers: the audit trail outlives the program."""
    ledger.append(run, record())
    db = sqlite3.connect(tmp_path / "ledger.sqlite")
    names = dict(db.execute("SELECT number, name FROM client WHERE run = ?", (run,)).fetchall())
    clients, weights, flagged, excluded = db.execute("SELECT clients, weights, flagged, excluded FROM round").fetchone()
    assert tuple(names[i] for i in struct.unpack("<3i", clients)) == record().client_ids
    assert (struct.unpack("<3d", weights), struct.unpack("<1i", flagged)) == ((0.0, 0.0, 1.0), (0,))
    assert [names[i] for i in struct.unpack("<2i", excluded)] == ["ü ☃", "a"]
    query = "SELECT signal, score, parts FROM watch WHERE run = ? AND round = 1 AND watch = 'centroid_distance'"
    signal, score, parts = db.execute(query, (run,)).fetchone()
    np.testing.assert_equal(struct.unpack("<3d", signal), (1.0, NAN, 1 / 3))
    np.testing.assert_equal(struct.unpack("<3d", score), (INF, NAN, -INF))
    assert json.loads(parts) == ["layer 2", "layer 1"]
    db.close()


def observation(round=3, metric="cosine", value=0.5, **changes):
    seen = {"source": "weights", "layer": "", "expected": 0.25, "score": math.nan, "p": math.nan, "alarm": False}
    return Observation(round=round, metric=metric, value=value, **{**seen, **changes})


def test_observations_come_back_as_they_went_in(tmp_path, ledger):
    run = ledger.start("live", "auditor", {}, {})
    first = [observation(2, "procrustes"), observation(2, "cmd", value=math.inf, layer="fc.1")]
    last = [observation(3, source="outputs", score=4.0, p=0.001, alarm=True, parts={"7": -3.5, "0": 0.25})]
    ledger.observe(run, first)
    ledger.observe(run, last)
    with Ledger(tmp_path) as again:
        got = again.observations(run)
    assert [repr(o) for o in got] == [repr(o) for o in first + last]  # NaN is not equal to itself
    assert got[2].moved() == ("7",)
    assert ledger.observations(run, "client 4") == []


def test_what_was_observed_again_is_replaced_and_stays_when_the_round_is_committed(ledger):
    run = ledger.start("simulated", "in-process", {}, {})
    ledger.observe(run, [observation(1, value=0.1)], observer="0")
    ledger.observe(run, [observation(1, value=0.2)], observer="0")
    ledger.append(run, record(1))
    assert [o.value for o in ledger.observations(run, "0")] == [0.2]


def test_observations_are_kept_all_or_none(ledger):
    run = ledger.start("live", "auditor", {}, {})
    with pytest.raises(TypeError, match="serializable"):
        ledger.observe(run, [observation(1), observation(2, parts={"a": object()})])
    assert ledger.observations(run) == []
