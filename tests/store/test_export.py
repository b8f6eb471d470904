"""A run as a table, read back by the programs it is for."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.types import Observation
from fedwarden.store.export import write_csv, write_json, write_parquet
from fedwarden.store.ledger import Run
from fedwarden.store.record import RunRecord
from fedwarden.store.story import Story

RUN = Run(3, "ward", 0.0, "done", "flower", {"rounds": 6}, {"torch": "2.13"}, {}, 6)


@pytest.fixture
def record(played):
    seen = [Observation(2, "weights", "cosine", "", float("nan"), 1.0, 1.0, 0.5, False, {"3": float("inf")})]
    return RunRecord(RUN, Story.of(played), {"eve": tuple(seen)})


def test_one_row_per_round_client_and_watch(record, played):
    frame = record.to_frame()
    assert len(frame) == sum(len(r.client_ids) for r in played)
    for r in played:
        mine = frame[frame["round"] == r.round].set_index("client").loc[list(r.client_ids)]
        assert np.array_equal(mine["score"], r.watches[0].scores, equal_nan=True)
        assert np.array_equal(mine["signal"], r.watches[0].signal, equal_nan=True)
        assert (mine["threshold"] == r.watches[0].threshold).all()
        assert np.array_equal(mine["weight"], r.weights)
        assert np.array_equal(mine["examples"], r.num_examples)
        assert mine["flagged"].tolist() == r.watches[0].flagged.tolist()
        assert mine["excluded"].tolist() == [c in r.excluded for c in r.client_ids]


def test_every_format_gives_the_same_table_back(record, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = record.to_frame()
    text = io.StringIO()
    write_csv(record, text)
    from_csv = pandas.read_csv(io.StringIO(text.getvalue()), dtype={"client": str})
    write_parquet(record, tmp_path / "run.parquet")
    from_parquet = pandas.read_parquet(tmp_path / "run.parquet")
    text = io.StringIO()
    write_json(record, text)
    told = json.loads(text.getvalue())
    for found in (from_csv, from_parquet, pandas.DataFrame(told["table"])):
        pandas.testing.assert_frame_equal(found.astype(frame.dtypes), frame)
    assert told["reasons"] == {c: str(record.story.reason(c)) for c in record.story.standings}
    assert told["observations"][0]["observer"] == "eve"
    assert told["observations"][0]["value"] is None
    assert told["observations"][0]["parts"] == {"3": None}


def test_a_record_shows_itself(record):
    text = record._repr_html_()
    for word in ("run 3: ward", "6 of 6", "60.0%", "client h, excluded since round 2", "far"):
        assert word in text
    assert record.plot().layout.title.text == "Accuracy and loss"
    assert record.plot("far").layout.title.text.startswith("far")
    assert record.plot(client="h").layout.title.text == "Client h"


def test_a_record_of_hostile_names_is_text(played):
    rename = {"h": "<script>x</script>"}
    hostile = [
        replace(
            r,
            client_ids=tuple(rename.get(c, c) for c in r.client_ids),
            excluded=tuple(rename.get(c, c) for c in r.excluded),
            watches=tuple(replace(w, words="<img src=x>") for w in r.watches),
        )
        for r in played
    ]
    text = RunRecord(replace(RUN, name="<script>"), Story.of(hostile))._repr_html_()
    assert "<script" not in text
    assert "<img" not in text
    assert "&lt;img src=x&gt; (far " in text


def test_no_name_is_a_formula_to_a_spreadsheet(played):
    names = {"a": "=HYPERLINK(1)", "b": "@x", "c": "-2+3"}
    hostile = [replace(r, client_ids=tuple(names.get(c, c) for c in r.client_ids)) for r in played]
    text = io.StringIO()
    write_csv(RunRecord(RUN, Story.of(hostile)), text)
    names = {row["client"] for row in csv.DictReader(io.StringIO(text.getvalue()))}
    assert {"'=HYPERLINK(1)", "'@x", "'-2+3"} <= names
    assert not any(name.startswith(("=", "@", "-", "+")) for name in names)


def test_a_record_of_nothing_shows_itself():
    empty = RunRecord(replace(RUN, config={}), Story.of([]))
    assert "0 of ?" in empty._repr_html_()
    assert empty.to_frame().empty
    assert "recorded no accuracy" in empty.plot().layout.annotations[0].text
