"""Figures of audits."""

import numpy as np
import pytest
from scipy.stats import linregress, t

from fedwarden.audit.trend import departure
from fedwarden.audit.verdict import Leakage
from fedwarden.core.types import Observation
from fedwarden.figures import audit


def observed(values, window=5):
    """What an auditor would have recorded of these values; an alarm in the last round."""
    seen = []
    for i, value in enumerate(values):
        found = departure(value, np.array(values[max(0, i - window) : i]))
        last = i == len(values) - 1
        seen.append(Observation(i + 1, "weights", "cosine", "", value, found.expected, found.score, found.p, last))
    return seen


def trace(figure, name):
    return next(t for t in figure.data if t.name == name)


@pytest.mark.parametrize("past", [3, 5])
def test_the_band_is_the_prediction_interval(past):
    """Against scipy's line: 95 % of new values lie within t s sqrt(1 + 1/m + (x - mean)^2 / Sxx)."""
    values = [1.0, 1.4, 1.1, 1.9, 1.6, 4.0][: past + 1]
    (*_, last) = observed(values)
    x, y = np.arange(past), np.array(values[:-1])
    line = linregress(x, y)
    s = np.sqrt(((y - line.intercept - line.slope * x) ** 2).sum() / (past - 2))
    wide = np.sqrt(1 + 1 / past + (past - x.mean()) ** 2 / ((x - x.mean()) ** 2).sum())
    assert audit.margin(last) == pytest.approx(t.ppf(0.975, past - 2) * s * wide, rel=1e-5)


def test_values_trend_band_and_alarms():
    seen = observed([1.0, 1.4, 1.1, 1.9, 1.6, 4.0])
    figure = audit.leakage([*seen, Observation(1, "other", "cosine", "", 9.0, 1, 1, 1, True)], "weights", "cosine")
    assert list(trace(figure, "measured").y) == [o.value for o in seen]
    assert trace(figure, "alarm").x == (6,)
    assert "alarm" in trace(figure, "alarm").text[0]
    assert np.isfinite(trace(figure, "95 % of what chance gives").y).sum() == 3


def test_a_source_that_was_not_observed():
    assert "nothing" in audit.leakage([], "weights", "cosine").layout.annotations[0].text


def test_each_source_against_each_null():
    verdicts = {
        "a": {"still": Leakage(0.9, 0.7, 1.0, 0.01, 0.5, 0.001)},
        "b": {"fresh": Leakage(0.5, 0.3, 0.7, 0.4, 0.0, 0.001)},
    }
    figure = audit.aurocs(verdicts)
    assert [trace.name for trace in figure.data] == ["against still", "against fresh"]
    assert figure.data[0].error_x.array[0] == pytest.approx(0.1)
    assert figure.data[0].error_x.arrayminus[0] == pytest.approx(0.2)
    assert audit.aurocs({}).layout.annotations[0].text == "no source has been judged"
