"""The chart of the README shows what the tables of results hold."""

from __future__ import annotations

import chart


def test_the_committed_chart_is_what_its_tables_make():
    made = "\n".join(chart.drawn(chart.under_attack(), chart.honest_cost())) + "\n"
    assert chart.PICTURE.read_text(encoding="utf-8") == made, "draw it again: python tools/chart.py"


def test_the_worst_and_the_mean_are_those_of_the_page():
    """docs/results/defences.md and different.md have these numbers."""
    worst, mean = chart.under_attack()["auto"]
    assert (round(worst, 1), round(mean, 1)) == (79.6, 96.9)
    assert round(chart.honest_cost()["Multi-Krum"], 1) == 8.5
