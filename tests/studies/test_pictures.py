"""Pictures as files."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from matplotlib.colors import to_hex

from fedwarden_research.studies import pictures
from fedwarden_research.studies.pictures import COLOURS, STRONG, curves, spread

PANELS = {
    "left": {"loud": {0.0: [0.5, 0.7], 1.0: [0.9, 0.9]}, "quiet": {0.0: [0.1], 1.0: [0.2]}},
    "right": {"quiet": {2.0: [0.4], 0.0: [0.3]}},
}


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws a picture into a file and gives back the figure, which does not hang on how a file is written."""
    plt, kept = pictures.drawing(), []

    def draw(panels, **options):
        curves(tmp_path / "new" / "p.svg", panels, "A title", "the x", "the y", **options)
        return kept[-1]

    with monkeypatch.context() as patch:
        patch.setattr(plt, "close", kept.append)
        yield draw
    plt.close("all")


def colours(figure):
    return {to_hex(line.get_color()) for axis in figure.axes for line in axis.lines}


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_picture_has_its_panels_lines_and_words(drawn, tmp_path):
    figure = drawn(PANELS, strong=("loud",))
    ElementTree.parse(tmp_path / "new" / "p.svg")
    assert figure.get_suptitle() == "A title"
    assert [(a.get_title(), a.get_xlabel(), a.get_ylabel()) for a in figure.axes] == [
        ("left", "the x", "the y"),
        ("right", "the x", ""),
    ]
    assert legend(figure) == ["loud", "quiet"]
    assert [line.get_label() for line in figure.axes[0].lines] == ["loud", "quiet"]
    assert figure.axes[1].lines[0].get_xydata().tolist() == [[0.0, 0.3], [2.0, 0.4]]  # in the order of the axis
    assert colours(figure) == {STRONG, COLOURS[1]}


def test_a_name_has_one_colour_and_one_entry_in_the_legend_whatever_panel_it_is_in(drawn):
    line = {0.0: [0.1], 1.0: [0.2]}
    for panels in ({"p": {"a": line, "b": line}}, {"p": {"a": line}, "q": {"b": line}}):
        figure = drawn(panels)
        assert colours(figure) == set(COLOURS[:2])
        assert legend(figure) == ["a", "b"]


def test_panels_are_broken_into_rows_and_only_the_outer_ones_have_labels(drawn):
    figure = drawn({f"panel {i}": {"a": {0: [0.1], 1: [0.2]}} for i in range(5)}, columns=3)
    assert [axis.get_xlabel() for axis in figure.axes] == ["", "", "the x", "the x", "the x"]
    assert [axis.get_ylabel() for axis in figure.axes] == ["the y", "", "", "the y", ""]


def test_words_are_places_in_their_order(drawn):
    (axis,) = drawn({"p": {"a": {"late": [1.0], "early": [2.0]}, "b": {"early": [3.0]}}}).axes
    assert [label.get_text() for label in axis.get_xticklabels()] == ["late", "early"]
    assert [line.get_xdata().tolist() for line in axis.lines] == [[0.0, 1.0], [1.0]]


def test_a_logarithmic_axis_shows_medians_and_ranges_and_no_interval_below_zero():
    skewed = [1.0, 2.0, 3.0, 400.0]
    assert spread(skewed, log=True) == (1.0, 2.5, 400.0)
    assert spread(skewed)[0] < 0
    low, middle, high = spread([1.0, 2.0, 3.0])  # Student: t of 2 degrees at 97.5 % is 4.3027, the deviation 1
    assert (middle, high - middle) == (2.0, pytest.approx(4.3027 / 3**0.5, abs=1e-4))
    assert middle - low == pytest.approx(high - middle)


def test_a_vertical_line_stands_in_every_panel_and_once_in_the_legend(drawn):
    figure = drawn(PANELS, upright={"a limit": 0.5})
    assert all(list(axis.lines[-1].get_xdata()) == [0.5, 0.5] for axis in figure.axes)
    assert legend(figure)[-1] == "a limit"
