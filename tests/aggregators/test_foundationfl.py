"""FoundationFL beside a loop: copies of one update, then a median or a trimmed mean."""

import numpy as np
import pytest
from scipy.stats import trim_mean

import fedwarden as fw
from fedwarden_research.aggregators.foundationfl import FoundationFL, from_extremes

CIRCLE = np.array([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [3.0, 0.0]])


def rows(n=9, seed=0, d=6):
    return np.random.default_rng(seed).normal(size=(n, d))


def farthest(x):
    """Equations 2 to 5 of the paper, one entry at a time."""
    best, largest = 0, -1.0
    for i, row in enumerate(x):
        to_max = sum((row[k] - max(x[:, k])) ** 2 for k in range(x.shape[1])) ** 0.5
        to_min = sum((row[k] - min(x[:, k])) ** 2 for k in range(x.shape[1])) ** 0.5
        if min(to_max, to_min) > largest:
            best, largest = i, min(to_max, to_min)
    return best


def test_scores_by_hand():
    """The extremes are (6, 8) and (0, 0): the distances to them are 10, 5, 0 and sqrt(73), and 0, 5, 10 and 3."""
    np.testing.assert_allclose(from_extremes(fw.Updates.of(CIRCLE)), [0.0, 5.0, 0.0, 3.0])


def test_the_answer_by_hand():
    """The second client is copied twice: 0, 3, 3, 3, 3, 6 and 0, 0, 4, 4, 4, 8."""
    np.testing.assert_allclose(fw.aggregate("foundationfl", CIRCLE).update, [3.0, 3.0])
    np.testing.assert_allclose(fw.aggregate("foundationfl", CIRCLE, then="median").update, [3.0, 4.0])


@pytest.mark.parametrize("m", [0, 1, 4, 20])
@pytest.mark.parametrize("n", [3, 8, 9])
def test_any_number_of_copies(n, m):
    for seed in range(5):
        x = rows(n, seed)
        more = np.vstack([x, *[x[farthest(x)][None]] * m])
        result = fw.aggregate("foundationfl", x, m=m, then="median")
        np.testing.assert_allclose(result.update, np.median(more, axis=0), atol=1e-12)
        assert result.weights is None
        np.testing.assert_allclose(
            fw.aggregate("foundationfl", x, m=m, b=1).update, trim_mean(more, 1.000001 / (n + m)), atol=1e-12
        )


@pytest.mark.parametrize(("n", "b"), [(4, 1), (9, 1), (10, 2), (17, 3)])
def test_by_default_half_as_many_copies_and_a_fifth_trimmed(n, b):
    x = rows(n)
    more = np.sort(np.vstack([x, *[x[farthest(x)][None]] * (n // 2)]), axis=0)
    np.testing.assert_allclose(fw.aggregate("foundationfl", x).update, more[b:-b].mean(axis=0), atol=1e-12)


def test_who_is_left_out_is_neither_extreme_nor_copied(cohort_of):
    x = np.vstack([rows(), np.full((1, 6), 1e3)])
    got = FoundationFL().step({}, cohort_of(x), np.append(np.linspace(0.1, 1.0, 9), 0.0))[1].update
    np.testing.assert_allclose(got, fw.aggregate("foundationfl", rows()).update, atol=1e-12)


def test_a_minority_that_reverses_its_updates_is_copied():
    """A weakness of the rule, not of this code: the loop chooses an attacker too. Without copies the sign is right."""
    for seed in range(5):
        rng = np.random.default_rng(seed)
        centre = rng.normal(size=200)
        x = centre + 0.7 * rng.normal(size=(20, 200))
        x[:6] *= -1
        assert farthest(x) < 6
        assert float(fw.aggregate("foundationfl", x, b=6).update.numpy() @ centre) < 0
        assert float(fw.aggregate("trimmed_mean", x, b=6).update.numpy() @ centre) > 0


@pytest.mark.parametrize(
    ("options", "n", "text"),
    [
        ({}, 2, "n >= 3 clients and m >= 0 copies; got n=2, m=1"),
        ({"m": -1}, 5, "m >= 0 copies; got n=5, m=-1"),
        ({"m": 1, "b": 3}, 5, "n \\+ m > 2b updates and b >= 0; got n=5, m=1, b=3"),
        ({"b": -1}, 5, "b >= 0; got n=5, m=2, b=-1"),
        ({"then": "krum"}, 5, "then is 'trimmed_mean' or 'median'; got 'krum'"),
    ],
)
def test_what_it_refuses(options, n, text):
    with pytest.raises(ValueError, match=text):
        fw.aggregate("foundationfl", rows(n), **options)
