"""Figures of a run."""

import math
from dataclasses import replace

import numpy as np
import pytest

from fedwarden.core.errors import ConfigError
from fedwarden.figures import guard
from fedwarden.figures.grids import pool_highest
from fedwarden.figures.heatmap import loudest
from fedwarden.figures.theme import VERMILION, template
from fedwarden.store.series import Series, WatchSeries
from fedwarden.store.story import Story

LIMIT = 7.0


def many(n, rounds, evil=()):
    """A run of many clients: client j scores j / n, evil ones ten times the limit until they are excluded."""
    scores = np.tile(np.arange(n, dtype=float) / n, (rounds, 1))
    scores[:, list(evil)] = 10 * LIMIT
    out = np.zeros((rounds, n), bool)
    out[2:, list(evil)] = True
    scores[3:, list(evil)] = np.nan
    weights = np.where(np.isnan(scores), np.nan, np.where(out, 0.0, 1 / n))
    limits, ids = np.full(rounds, LIMIT), tuple(map(str, range(n)))
    watch = WatchSeries("far", scores, scores, scores > LIMIT, limits, {}, "it is far")
    metrics = {"accuracy": np.linspace(0.1, 0.9, rounds)}
    return Series(np.arange(1, rounds + 1), ids, np.ones((rounds, n)), weights, out, out, {"far": watch}, metrics)


@pytest.fixture
def series(played):
    return Series.of(played)


def told(series):
    return Story(series, {}.__getitem__, tuple(series.watches))


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


@pytest.mark.parametrize("scale", ["limit", "linear", "log", "robust z"])
def test_a_cell_is_the_score_and_a_cross_the_exclusion(series, scale):
    figure = guard.heatmap(series, "far", scale)
    cells = next(t for t in figure.data if t.customdata is not None)
    place = list(cells.y).index("h"), list(cells.x).index("2")
    score, limit, client = np.asarray(cells.customdata)[place]
    watch = series.watches["far"]
    assert (score, limit) == pytest.approx((watch.scores[1, 7], watch.threshold[1]), rel=1e-6)
    assert series.clients[int(client)] == "h"
    shown = np.asarray(cells.z)[place]
    row = watch.scores[1]
    z = (row[7] - np.median(row)) / np.median(np.abs(row - np.median(row)))
    far = min(2.0, (row[7] - np.median(row)) / (watch.threshold[1] - np.median(row)))
    expected = {"limit": far, "linear": row[7], "log": math.log10(row[7]), "robust z": z}
    assert shown == pytest.approx(expected[scale], rel=1e-5)
    cross = trace(figure, "excluded by this watch")
    assert (cross.x, cross.y) == (("2",), ("h",))
    assert "excluded in round 2" in cross.text[0]
    assert np.isnan(np.asarray(cells.z)[list(cells.y).index("b"), 3])  # rejected, so not judged


def test_many_cells_are_pooled_by_their_highest_and_the_figure_says_so():
    figure = guard.heatmap(many(1000, 500, evil=[601]), "far", "linear")
    text = figure.to_json()
    assert len(text) < 1e6
    assert "highest of 5 clients and 3 rounds" in figure.layout.title.subtitle.text
    cells = next(t for t in figure.data if t.customdata is not None)
    assert np.asarray(cells.z).shape == (200, 167)
    assert np.asarray(cells.z)[120, 0] == 10 * LIMIT  # clients 600 to 604
    assert np.asarray(cells.customdata)[120, 0, 2] == 601
    assert np.asarray(cells.z)[120, 5] == pytest.approx(0.604)


def test_only_the_watch_that_decided_has_crosses(series):
    far = series.watches["far"]
    silent = replace(far, name="still", flagged=far.flagged & False)
    figure = guard.heatmap(replace(series, watches={"far": far, "still": silent}), "still")
    assert not trace(figure, "excluded by this watch").x
    assert figure.layout.title.subtitle.text == "1 client excluded by other watches"
    assert not guard.heatmap(series, "far").layout.title.subtitle.text
    assert loudest(replace(series, watches={"still": silent, "far": far})) == ["far", "still"]


def test_grey_is_explained_and_rounds_without_a_limit_are_told_apart(series):
    far = series.watches["far"]
    late = replace(far, threshold=np.where(series.rounds < 2, np.inf, far.threshold))
    figure = guard.heatmap(replace(series, watches={"far": late}), "far")
    assert {t.name for t in figure.data if t.showlegend is not False and t.type == "scatter"} == {
        "excluded or suspended", "no limit in this round", "excluded by this watch",
    }  # fmt: skip
    cells = next(t for t in figure.data if t.customdata is not None)
    assert np.isnan(np.asarray(cells.z)[:, 0]).all()
    never = replace(far, threshold=np.full(6, np.inf), flagged=far.flagged & False)
    bar = guard.heatmap(replace(series, watches={"far": never}), "far").layout.coloraxis.colorbar
    assert "robust z" in bar.title.text


def test_the_log_scale_shows_four_powers_of_ten_whatever_the_smallest_score_is(series):
    far = series.watches["far"]
    for low in (0.0, 1e-300):
        scores = np.where(np.isnan(far.scores), np.nan, low)
        scores[:2, :3] = [[1.0, 30.0, 500.0]] * 2
        figure = guard.heatmap(replace(series, watches={"far": replace(far, scores=scores)}), "far", "log")
        z = np.asarray(next(t for t in figure.data if t.customdata is not None).z)
        assert np.nanmin(z) >= math.log10(500) - 4 - 1e-6
        assert z[:3, 0] == pytest.approx(np.log10([1.0, 30.0, 500.0]), abs=1e-6)
        assert len(figure.layout.coloraxis.colorbar.tickvals) >= 2
    nothing = replace(far, scores=np.where(np.isnan(far.scores), np.nan, -1.0))
    cells = guard.heatmap(replace(series, watches={"far": nothing}), "far", "log").data
    assert np.nanmax(np.asarray(next(t for t in cells if t.customdata is not None).z)) == -1.0


def test_rounds_are_whole(played):
    few = Series.of(played[:3])
    runs = guard.learning(few), guard.compare(few, few, ("a", "b"))
    for figure in (*runs, guard.scores(told(few), "far"), guard.client(few, "a")):
        assert figure.layout.xaxis.dtick == 1
        assert figure.layout.xaxis.autorangeoptions.minallowed == 0.5


def test_pooling_keeps_gaps_and_ragged_edges():
    grid = np.array([[1.0, 2.0, np.nan], [np.nan, 5.0, np.nan], [7.0, np.nan, np.nan]])
    values, rows = pool_highest(grid, (2, 2))
    assert np.array_equal(values, [[5.0, np.nan], [7.0, np.nan]], equal_nan=True)
    assert rows[:, 0].tolist() == [1, 2]


def test_a_score_without_bound_is_drawn_as_the_highest(series):
    watch = series.watches["far"]
    scores = watch.scores.copy()
    scores[1, 7] = np.inf
    endless = replace(series, watches={"far": replace(watch, scores=scores)})
    cells = next(t for t in guard.heatmap(endless, "far", "linear").data if t.customdata is not None)
    assert np.asarray(cells.z)[7, 1] == pytest.approx(scores[np.isfinite(scores)].max(), rel=1e-6)


def test_scores_show_the_limit_and_those_excluded(series):
    figure = guard.scores(told(series), "far")
    limit = trace(figure, "limit")
    assert np.array_equal(limit.y, series.watches["far"].threshold)
    assert np.array_equal(trace(figure, "client h").y, series.watches["far"].scores[:, 7], equal_nan=True)
    chosen = guard.scores(told(series), "far", ["a"])
    assert trace(chosen, "client a") is not None
    assert "client h" not in [t.name for t in chosen.data]


def test_scores_of_many_clients_are_a_band():
    figure = guard.scores(told(many(1000, 20)), "far", ["7"])
    middle = trace(figure, "their median")
    assert middle.y[0] == pytest.approx(0.5, abs=0.01)
    assert len(figure.data) < 10


def test_learning_marks_who_was_excluded_when(series):
    figure = guard.learning(series)
    assert np.allclose(trace(figure, "clean accuracy").y, np.arange(1, 7) / 10)
    assert trace(figure, "exclusion").text == ("round 2: excluded h",)
    assert {shape.x0 for shape in figure.layout.shapes} == {2}


def test_a_client_relative_to_its_limits(series):
    figure = guard.client(series, "h")
    watch = series.watches["far"]
    middle = np.median(watch.scores[1])
    assert trace(figure, "far").y[1] == pytest.approx((watch.scores[1, 7] - middle) / (watch.threshold[1] - middle))
    assert list(trace(figure, "weight").y[:2]) == [1 / 8, 0]
    refused = guard.client(series, "b")
    assert trace(refused, "rejected reply").x == (4,)


def test_two_runs(series):
    figure = guard.compare(series, many(5, 6, evil=[1, 2]), ("ours", "<b>theirs"))
    counts = [t for t in figure.data if t.legendgroup == "<b>theirs"][1]
    assert list(counts.y) == [0, 0, 2, 2, 2, 2]
    assert counts.name == "&lt;b&gt;theirs"


def test_what_is_not_there_is_said(series):
    with pytest.raises(ConfigError, match="did you mean 'far'"):
        guard.heatmap(series, "fat")
    with pytest.raises(ConfigError, match="no client 'x'"):
        guard.client(series, "x")
    with pytest.raises(ConfigError, match="linear"):
        guard.heatmap(series, "far", "cubic")
    bare = replace(Series.of([]), watches={"far": series.watches["far"]})
    for figure in (guard.heatmap(bare, "far"), guard.scores(told(bare), "far"), guard.learning(bare)):
        assert "recorded" in figure.layout.annotations[0].text


def test_a_notebook_shows_the_watch_that_flagged_most_clients(series):
    far = series.watches["far"]  # flags h alone
    often, many = np.zeros_like(far.flagged), np.zeros_like(far.flagged)
    often[:, 0] = many[0, :2] = True
    watches = {"often": replace(far, name="often", flagged=often), "far": far}
    shown = guard.draw(told(replace(series, metrics={}, watches=watches)))
    assert shown.layout.title.text.startswith("often")  # the first of equals, one client each
    watches["many"] = replace(far, name="many", flagged=many)
    shown = guard.draw(told(replace(series, metrics={}, watches=watches)))
    assert shown.layout.title.text.startswith("many")


def test_names_of_clients_are_no_markup(played):
    evil = '<a href="https://example.org">x</a>'
    ids = [replace(r, client_ids=tuple(evil if c == "h" else c for c in r.client_ids),
                   excluded=tuple(evil for _ in r.excluded)) for r in played]  # fmt: skip
    series = Series.of(ids)
    runs = guard.learning(series), guard.heatmap(series, "far"), guard.scores(told(series), "far")
    for figure in (*runs, guard.client(series, evil)):
        assert "<a" not in figure.to_json()
        assert "\\u003ca" not in figure.to_json()


def contrast(a, b):
    """Of two colours, by the rule of the web content accessibility guidelines."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    one, other = sorted((luminance(a), luminance(b)))
    return (other + 0.05) / (one + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_is_legible(dark):
    layout = template(dark).layout
    assert contrast(layout.font.color, layout.paper_bgcolor) >= 7
    assert contrast(VERMILION, layout.paper_bgcolor) >= 3
