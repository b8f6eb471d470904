"""A run as arrays, whole and in part: it grows round by round into what it is when read at once."""

from dataclasses import fields, is_dataclass

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger
from fedwarden.store.record import RunRecord, read_series
from fedwarden.store.series import Series


def record(t, clients, excluded=(), watches=("far",), rejected=(), told=None, **metrics):
    n, rng = len(clients), np.random.default_rng(t)

    def watch(name):
        signal = np.where([c in rejected for c in clients], np.nan, rng.normal(size=n))
        limit = np.inf if t == 1 else float(t)
        return WatchRecord(
            name, signal, 2 * signal, limit, rng.random(n) > 0.5, Note.text(f"{name} {t}"), {}, "far out"
        )

    refused = tuple(Rejection(c, Note.of("idle")) for c in rejected)
    return RoundRecord(
        t, tuple(clients), rng.integers(1, 9, n).astype(float), rng.random(n), tuple(map(watch, watches)),
        rng.random(n) > 0.5, excluded, refused, (Note.text(f"note {t}"),), metrics, reported=told or {},
    )  # fmt: skip


RECORDS = [
    record(1, "bca", told={"train/loss": {"a": 2.0, "b": 3.0}, "reply/bytes": {"c": 1.0}}, accuracy=0.1),
    record(2, "abc", ("b",), ("far", "odd"), rejected=("c", "stranger"), accuracy=0.2, loss=1.0),
    record(3, "ac", ("b",), ("odd",), rejected=("d",), told={"train/loss": {"a": 1.0, "e": 0.5}}, loss=0.5),
    record(5, "aexx", ("b",), accuracy=0.4),
    record(6, (), ("b",), ()),
]


def same(a, b, name=""):
    if isinstance(a, dict):
        assert a.keys() == b.keys(), name
        for key in a:
            same(a[key], b[key], f"{name}.{key}")
    elif is_dataclass(a) and not isinstance(a, Note):
        for field in fields(a):
            same(getattr(a, field.name), getattr(b, field.name), f"{name}.{field.name}")
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype, name
        np.testing.assert_array_equal(a, b, name)
    else:
        assert a == b, name


@pytest.fixture
def home(tmp_path):
    with Ledger(tmp_path) as ledger:
        run = ledger.start("r", "flower", {}, {})
        for round in RECORDS:
            ledger.append(run, round)
        ledger.start("empty", "flower", {}, {})
    return tmp_path


@pytest.mark.parametrize("cut", range(len(RECORDS) + 1))
def test_a_series_grows_into_what_it_is_when_read_at_once(cut, home):
    """Also where its rest is read by column; of two replies of one client the first counts."""
    whole, first, after = Series.of(RECORDS), Series.of(RECORDS[:cut]), RECORDS[cut - 1].round if cut else 0
    assert whole.clients == ("a", "b", "c", "d", "e", "stranger", "x")
    assert whole.excluded_in["b"] == 2
    assert whole.weights[3, -1] == RECORDS[3].weights[2]
    same(Series.joined([first, Series.of(RECORDS[cut:])]), whole)
    with Ledger(home, read_only=True) as ledger:
        same(Series.joined([first, read_series(ledger, 1, after)]), whole)


def test_reading_gives_what_was_recorded(home):
    with Ledger(home, read_only=True) as ledger:
        same(Series.of(ledger.records(1)), Series.of(RECORDS))
        same(Series.of([*ledger.stream(1, after=2)]), Series.of(RECORDS[2:]))
        assert list(read_series(ledger, 1, watches=["odd"]).watches) == ["odd"]
        assert Series.of(ledger.records(2)).weights.shape == (0, 0)
    same(RunRecord.open("r", home).series, Series.of(RECORDS))
