"""A run read as arrays, whole and in part."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection, RoundRecord, WatchRecord
from fedwarden.store.ledger import Ledger, LedgerError
from fedwarden.store.record import RunRecord
from fedwarden.store.series import Series


def record(
    t: int, ids: tuple[str, ...], rng: np.random.Generator, watches: tuple[str, ...], rejected=()
) -> RoundRecord:
    n = len(ids)

    def watch(name):
        signal = np.where([c in rejected for c in ids], np.nan, rng.normal(size=n))
        return WatchRecord(
            name, signal, signal * 2, np.inf if t == 1 else 1.5, signal > 1, Note.text("low") if t == 2 else None
        )

    return RoundRecord(
        t, ids, rng.integers(1, 9, n).astype(float), rng.random(n), tuple(map(watch, watches)), rng.random(n) > 0.5,
        ("x",) if t > 2 else (), tuple(Rejection(c, Note.of("idle")) for c in rejected),
        (Note.text("a note"),) if t == 2 else (),
        {"accuracy": t / 10} if t != 2 else {},
    )  # fmt: skip


@pytest.fixture
def rounds():
    rng = np.random.default_rng(0)
    return [
        record(1, ("10", "9", "x"), rng, ("far",)),
        record(2, ("9", "x"), rng, ("far", "turned"), rejected=("x", "stranger")),
        record(4, ("x", "10", "10"), rng, ("turned",)),
        record(5, (), rng, ()),
    ]


def same(a, b):
    for field in fields(a):
        x, y = getattr(a, field.name), getattr(b, field.name)
        if field.name == "watches":
            assert list(x) == list(y)
            for name in x:
                same(x[name], y[name])
        elif field.name == "metrics":
            assert x.keys() == y.keys()
            assert all(np.array_equal(x[k], y[k], equal_nan=True) for k in x)
        elif isinstance(x, np.ndarray):
            assert np.array_equal(x, y, equal_nan=x.dtype == float), field.name
        else:
            assert x == y, field.name


def test_reading_gives_what_was_recorded(tmp_path, rounds):
    with Ledger(tmp_path) as ledger:
        run = ledger.start("r", "test", {}, {})
        for one in rounds:
            ledger.append(run, one)
        same(Series.of(ledger.records(run)), Series.of(rounds))
        same(Series.of(ledger.records(run, after=2)), Series.of(rounds[2:]))
        assert list(Series.of(ledger.records(run, watches=["turned"])).watches) == ["turned"]
        empty = ledger.start("empty", "test", {}, {})
        assert Series.of(ledger.records(empty)).weights.shape == (0, 0)
    opened = RunRecord.open("r", tmp_path)
    same(opened.series, Series.of(rounds))
    assert opened.series.excluded_in == {"x": 4}


def test_a_ledger_is_read_without_being_written(tmp_path):
    with pytest.raises(LedgerError, match="no ledger"):
        Ledger(tmp_path / "nowhere", read_only=True)
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
