"""Tables of studies: spreads by hand, and Markdown."""

from __future__ import annotations

import pytest

from fedwarden.studies.tables import interval, markdown


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([0.5], ".500"),  # one seed has no deviation
        ([1.0, 1.0], "1.000 ± .000"),
        ([0.0, 1.0], ".500 ± .707"),  # deviations of a half each: sqrt(0.5)
        ([0.9996, 0.9996], "1.000 ± .000"),
    ],
)
def test_an_interval_over_seeds(values, text):
    assert interval(values) == text


def test_a_table_in_markdown():
    assert markdown(("a", "b"), [[1, "x"], [2.5, None]]) == "| a | b |\n| --- | --- |\n| 1 | x |\n| 2.5 | None |"
