"""The chart of the README shows what the tables of results hold."""

import chart


def test_the_committed_chart_is_what_its_tables_make():
    made = "\n".join(chart.drawn(chart.under_attack(), chart.honest_cost())) + "\n"
    assert chart.PICTURE.read_text(encoding="utf-8") == made, "draw it again: python tools/chart.py"
