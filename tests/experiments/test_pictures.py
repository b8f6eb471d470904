"""Pictures as files."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from fedwarden.core.errors import MissingExtra
from fedwarden.experiments import pictures
from fedwarden.experiments.pictures import COLOURS, FAINT, STRONG, curves, spread

PANELS = {
    "left": {"loud": {0.0: [0.5, 0.7], 1.0: [0.9, 0.9]}, "quiet": {0.0: [0.1], 1.0: [0.2]}},
    "right": {"quiet": {2.0: [0.4], 0.0: [0.3]}},
}


def test_a_picture_has_its_panels_lines_and_words(tmp_path):
    path = tmp_path / "new" / "folder" / "p.svg"
    curves(path, PANELS, "A title", "the x", "the y", strong=("loud",))
    text = path.read_text()
    ElementTree.fromstring(text)
    for word in ("A title", "the x", "the y", "left", "right", "loud", "quiet"):
        assert word in text
    assert STRONG in text.lower()
    assert FAINT in text.lower()
    assert len(re.findall(r'<g id="axes_\d+">', text)) == 2


def test_nobody_stands_out_unless_told(tmp_path):
    curves(tmp_path / "p.svg", PANELS, "t", "x", "y")
    assert STRONG not in (tmp_path / "p.svg").read_text().lower()


def test_panels_may_have_axes_of_their_own(tmp_path):
    far = {"low": {"a": {0.0: [0.1], 1.0: [0.2]}}, "high": {"a": {0.0: [1000.0], 1.0: [2000.0]}}}
    for share in (True, False):
        curves(tmp_path / f"{share}.svg", far, "t", "x", "y", share=share)
    shared, own = ((tmp_path / f"{share}.svg").read_text() for share in (True, False))
    assert shared != own
    small = re.compile(r"(?:<!-- |>)(0\.1\d*)(?: -->|</text>)")  # a tick between the values of the first panel
    assert small.search(own)
    assert not small.search(shared)


def test_a_panel_without_lines_is_drawn_empty(tmp_path):
    curves(tmp_path / "p.svg", {"empty": {}, **PANELS}, "t", "x", "y")
    assert "empty" in (tmp_path / "p.svg").read_text()


def test_without_matplotlib_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"pip install 'fedwarden\[figures\]'"):
        curves(tmp_path / "p.svg", PANELS, "t", "x", "y")
    assert not (tmp_path / "p.svg").exists()


def test_a_name_has_one_colour_and_one_entry_in_the_legend_whatever_panel_it_is_in(tmp_path):
    line = {0.0: [0.1], 1.0: [0.2]}
    drawn = {}
    for name, panels in {"one": {"p": {"a": line, "b": line}}, "two": {"p": {"a": line}, "q": {"b": line}}}.items():
        curves(tmp_path / f"{name}.svg", panels, "t", "x", "y")
        text = (tmp_path / f"{name}.svg").read_text().lower()
        drawn[name] = {colour for colour in COLOURS if re.search(f"stroke: {colour}[^>]*stroke-width: 1.2", text)}
        legend = text[text.index('id="legend_1"') :]
        assert [bool(re.search(rf"(?:<!-- |>){label}(?: -->|</text>)", legend)) for label in "ab"] == [True, True]
    assert drawn["one"] == drawn["two"] == set(COLOURS[:2])


def test_panels_are_broken_into_rows_and_only_the_outer_ones_have_labels(tmp_path):
    panels = {f"panel {i}": {"a": {0: [0.1], 1: [0.2]}} for i in range(5)}
    curves(tmp_path / "p.svg", panels, "t", "the x", "the y", columns=3)
    text = (tmp_path / "p.svg").read_text()
    assert len(re.findall(r'<g id="axes_\d+">', text)) == 5
    assert [len(re.findall(rf"(?:<!-- |>){word}(?: -->|</text>)", text)) for word in ("the x", "the y")] == [3, 2]


def test_words_are_places_in_their_order(tmp_path):
    curves(tmp_path / "p.svg", {"p": {"a": {"late": [1.0], "early": [2.0]}, "b": {"early": [3.0]}}}, "t", "x", "y")
    text = (tmp_path / "p.svg").read_text()
    at = {word: float(x) for x, word in re.findall(r'<text[^>]*?x="([\d.]+)"[^>]*>(late|early)</text>', text)}
    assert at["late"] < at["early"]


def test_a_logarithmic_axis_shows_medians_and_ranges_and_no_interval_below_zero():
    skewed = [1.0, 2.0, 3.0, 400.0]
    assert spread(skewed, log=True) == (1.0, 2.5, 400.0)
    assert spread(skewed)[0] < 0
    low, middle, high = spread([1.0, 2.0, 3.0])  # Student: t of 2 degrees at 97.5 % is 4.3027, the deviation 1
    assert (middle, high - middle) == (2.0, pytest.approx(4.3027 / 3**0.5, abs=1e-4))
    assert middle - low == pytest.approx(high - middle)


def test_many_places_are_a_band(tmp_path):
    for count, band in ((5, False), (20, True)):
        curves(tmp_path / "p.svg", {"p": {"a": {i: [1.0, 2.0] for i in range(count)}}}, "t", "x", "y", log=True)
        assert ("FillBetween" in (tmp_path / "p.svg").read_text()) == band
