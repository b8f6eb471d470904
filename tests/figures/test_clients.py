"""The map of the clients, all of them at a glance, and what one tells of itself."""

from dataclasses import replace
from urllib.parse import unquote

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.notes import Note
from fedwarden.core.types import Rejection
from fedwarden.dashboard.pages.glance import bars, glances, sparkline
from fedwarden.figures import clients
from fedwarden.store.series import Series
from fedwarden.store.story import Story

NAMES = (*"abcdef", "<i>eve</i>", "mallory", "copycat")


@pytest.fixture(scope="module")
def colluding():
    """Five rounds of nine clients: two collude, one sends what client a sends; nobody is excluded."""
    rng = np.random.default_rng(0)
    common, aim = rng.normal(size=(2, 300))
    warden = fw.Warden([fw.Watch("twins")], "observe")
    records = []
    for t in range(1, 6):
        rows = common + rng.normal(size=(9, 300))
        rows[6:8] = aim - common + 0.2 * rng.normal(size=(2, 300))
        rows[8] = 3 * rows[0]  # longer, and of the same direction
        records.append(warden.step(fw.Cohort(t, NAMES, fw.Updates.of(rows), np.full(9, 10.0))).record)
    return records


def test_copies_share_a_place_and_colluders_are_neighbours(colluding):
    found = clients.spots(Story.of(colluding))
    assert [spot.who for spot in found if len(spot.who) > 1] == [("a", "copycat")]
    at = {who: np.array([spot.x, spot.y]) for spot in found for who in spot.who}
    near = np.linalg.norm(at["<i>eve</i>"] - at["mallory"])
    others = [np.linalg.norm(at["mallory"] - at[c]) for c in "abcdef"]
    assert near < 0.3 * min(others)


def test_the_map_names_its_clients_as_text_and_says_who_has_left(colluding):
    late = [replace(r, client_ids=r.client_ids[:8], num_examples=r.num_examples[:8], weights=r.weights[:8], watches=(),
                    flagged=r.flagged[:8], reported={k: {c: v[c] for c in NAMES[:8]} for k, v in r.reported.items()})
            for r in colluding[3:]]  # fmt: skip
    figure = clients.similarity(Story.of([*colluding[:3], *late]), "mallory")
    words = [t for trace in figure.data for t in (trace.text or ())]
    assert "&lt;i&gt;eve&lt;/i&gt;" in words
    assert "<i>" not in figure.to_json().replace("<br>", "")
    left = [text for trace in figure.data for text, symbol in zip(trace.text, trace.marker.symbol, strict=True)
            if symbol == "circle-open"]  # fmt: skip
    assert left == ["copycat"]


def test_a_run_without_directions_has_no_map(played):
    assert not clients.has_map(Series.of([]))
    bare = Story.of([replace(r, reported={}) for r in played])
    assert not clients.has_map(bare.series)
    assert "no directions" in clients.similarity(bare).layout.annotations[0].text


def test_what_a_client_tells_is_drawn_and_what_the_guard_measures_is_not(played):
    own = [replace(r, reported={"train/<b>": {"a": 1.0 / r.round}, "reply/seconds": {"a": 2.0}, "map/x": {"a": 0.0},
                                "update/cosine": {"a": 0.5}}) for r in played]  # fmt: skip
    figure = clients.told(Series.of(own), "a")
    assert [t.name for t in figure.data] == ["train/&lt;b&gt;"]
    assert clients.unchanged(Series.of(own), "a") == {"reply/seconds": 2.0}
    assert clients.told(Series.of(own), "b") is None


def test_every_client_at_a_glance(played):
    late = Note.of("no_answer")
    heard = [replace(r, rejected=(*r.rejected, Rejection("new", late))) if r.round > 4 else r for r in played]
    story = Story.of(heard)
    series, rows = story.series, glances(story, Series.of(heard[-3:]))
    assert [r.client for r in rows][:2] == ["h", "new"]
    assert (rows[0].state, rows[0].weight, rows[0].near) == ("excluded since round 2", 0.0, {})
    assert rows[1].state == "rejected, silent since round 5"
    heights = [r.height for r in rows[2:]]
    assert heights == sorted(heights, reverse=True)
    watch, j = series.watches["far"], series.clients.index(rows[2].client)
    middle = np.nanmedian(watch.scores[-1])
    assert rows[2].worst == "far"
    assert rows[2].height == pytest.approx((watch.scores[-1, j] - middle) / (watch.threshold[-1] - middle))
    assert len(rows[2].recent) == 3


def test_the_pictures_mark_what_is_above_the_limit():
    line = unquote(sparkline([0.2, np.nan, 1.5, np.inf]))
    assert line.count("<circle") == 2
    assert line.count("<polyline") == 2
    assert "nan" not in line
    assert "inf" not in line
    assert unquote(bars([0.5, 3.0])).count("#D55E00") == 2  # one bar, and the limit
