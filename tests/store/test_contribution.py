"""Who helps the model: the mean and its standard error against scipy, and the words for it."""

import math

import numpy as np
import pytest
from scipy.stats import sem

from fedwarden.core.types import RoundRecord, WatchRecord
from fedwarden.store.contribution import Contribution, contribution, contributions
from fedwarden.store.series import Series

TEN = np.full(40, 10.0)


@pytest.mark.parametrize(
    ("mean", "kind"), [(-0.02, "helps"), (0.0001, "unclear"), (-0.0001, "unclear"), (0.005, "no help"), (0.05, "harms")]
)
def test_the_mean_over_rounds_with_its_error(mean, kind):
    """Harm of .01 of each of ten clients is where harm begins: a tenth of a loss for all."""
    noise = np.random.default_rng(0).normal(0.0, 0.005, size=40)
    harm = mean + noise - noise.mean()
    found = contribution(harm, TEN)
    assert found.mean == pytest.approx(-mean)
    assert found.error == pytest.approx(sem(harm))
    assert (found.kind, found.rounds) == (kind, 40)


def test_harm_is_that_of_a_client_among_so_many():
    harm = np.tile([0.004, 0.006], 20)
    assert contribution(harm, TEN).kind == "no help"
    assert contribution(harm, 10 * TEN).kind == "harms"


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_few_rounds_tell_nothing(rounds):
    found = contribution(np.array([-1.0] * rounds + [np.nan] * (5 - rounds)), TEN[:5])
    assert (found.kind, found.rounds) == ("unclear", rounds)
    assert math.isnan(found.error)


def record(t, clients, harm):
    n, values = len(clients), np.array(harm)
    watch = WatchRecord("harm", values, values, 3.0, np.zeros(n, bool))
    return RoundRecord(t, clients, np.ones(n), np.ones(n), (watch,), np.zeros(n, bool))


def test_of_a_run_every_client_that_was_measured():
    rounds = [record(t, ("a", "b", "c"), [-0.3 - 0.01 * t, 0.3 + 0.01 * t, np.nan]) for t in range(1, 6)]
    rounds += [record(6, ("a",), [-0.5])]
    found = contributions(Series.of(rounds))
    assert {c: (x.kind, x.rounds) for c, x in found.items()} == {"a": ("helps", 6), "b": ("harms", 5)}
    assert found["b"].mean == pytest.approx(-0.33)


def test_where_harm_is_not_watched_there_is_nothing_to_tell():
    bare = RoundRecord(1, ("a",), np.ones(1), np.ones(1), (), np.zeros(1, bool))
    assert contributions(Series.of([bare])) == {}


def test_in_words():
    words = {
        "helps": "helps the model: its updates lower the loss by 0.012 +- 0.003 per round",
        "no help": "does not help the model: its updates raise the loss by 0.012 +- 0.003 per round",
        "harms": "harms the model: its updates raise the loss by 0.012 +- 0.003 per round",
        "unclear": "no measurable contribution",
    }
    for kind, text in words.items():
        assert str(Contribution(kind, 0.0123 if kind == "helps" else -0.0123, 0.00312, 20)) == text
