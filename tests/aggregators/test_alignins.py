"""AlignIns with a model to compare with, ties among the largest entries, and limits of one's own."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden_research.aggregators.alignins import AlignIns, aligned, median_z, model_cosines, sign_agreement
from fedwarden_research.conformance import golden, newer

MODEL = np.random.default_rng(7).normal(size=10)


def rows(n=9, seed=0, d=10):
    return np.random.default_rng(seed).normal(0.4, 1.0, size=(n, d))


def step(x, cohort_of, weights=None, counts=None, params=MODEL, **options):
    cohort = cohort_of(x, counts=counts, params=None if params is None else torch.tensor(params))
    return AlignIns(**options).step({}, cohort, np.ones(len(cohort)) if weights is None else weights)[1]


@pytest.mark.parametrize("options", [{}, {"angle": 0.5}, {"signs": 0.4, "share": 0.8}, {"angle": 9.0, "signs": 9.0}])
@pytest.mark.parametrize("n", [3, 8, 9])
def test_the_answer_is_that_of_a_loop_that_knows_the_model(n, options, cohort_of):
    limits = {"share": 0.3, "angle": 1.0, "signs": 1.0, **options}
    for seed in range(20):
        x = rows(n, seed)
        result = step(x, cohort_of, **options)
        np.testing.assert_allclose(result.update, newer.alignins(x, **limits, model=MODEL), atol=1e-12)
        assert result.weights is None


def test_the_model_decides_by_itself(cohort_of):
    """All signs agree; one of five updates points away from the model, where the others have a cosine near 1."""
    x = np.array([[1.0, 1.0, 1.0, 1.0]] * 4 + [[9.0, 0.1, 0.1, 0.1]])
    x[:4] += np.linspace(0.0, 0.03, 4)[:, None] * np.array([1.0, -1.0, 0.0, 0.0])
    assert aligned(fw.Updates.of(x), torch.ones(4), 0.5, 1.0, 1.0).tolist() == [True] * 4 + [False]
    away = step(x, cohort_of, params=np.zeros(4), share=0.5).update
    near = step(x, cohort_of, params=np.ones(4), share=0.5).update
    assert float(away[0]) > 1.1 > float(near[0])


def test_median_z_by_hand():
    """The values 1, 2, 9 have the mean 4, the variance (9 + 4 + 25) / 3 and the median 2."""
    np.testing.assert_allclose(median_z(np.array([1.0, 2.0, 9.0])), np.array([1.0, 0.0, 7.0]) / (38 / 3) ** 0.5)
    assert median_z(np.full(4, 0.1)).tolist() == [0.0] * 4


def test_entries_of_one_size_share_the_last_places():
    """Three entries of size 1 for one place after the 2; two of the three agree with the majority, which has all +."""
    x = np.array([[2.0, 1.0, -1.0, 1.0], [5.0, 4.0, 3.0, 2.0], [5.0, 4.0, 3.0, 2.0]])
    np.testing.assert_allclose(sign_agreement(fw.Updates.of(x), k=2), [(1 + 2 / 3) / 2, 1.0, 1.0])
    np.testing.assert_allclose(sign_agreement(fw.Updates.of(x[:, ::-1].copy()), k=2), [(1 + 2 / 3) / 2, 1.0, 1.0])
    np.testing.assert_allclose(sign_agreement(fw.Updates.of(x), k=4), [0.75, 1.0, 1.0])


def test_a_sign_of_zero_agrees_where_the_votes_are_even():
    x = np.array([[3.0, 0.0], [3.0, 1.0], [3.0, -1.0]])
    assert sign_agreement(fw.Updates.of(x), k=2).tolist() == [1.0, 0.5, 0.5]


def test_what_is_not_measured_has_neither_angle_nor_sign():
    x, model = rows(), torch.tensor(MODEL)
    wide = np.insert(x, [0, 6], np.random.default_rng(3).normal(0.0, 1e6, size=(9, 2)), axis=1)
    updates = fw.Updates.of(wide, measured=[(1, 7), (8, 12)])
    params = torch.cat([torch.tensor([1e9]), model[:6], torch.tensor([-1e9]), model[6:]])
    np.testing.assert_allclose(model_cosines(updates, params), [golden.cosine(row, MODEL) for row in x], atol=1e-12)
    np.testing.assert_array_equal(sign_agreement(updates, 3), sign_agreement(fw.Updates.of(x), 3))


@pytest.mark.parametrize("weighted", [True, False])
def test_who_counts_how_much(weighted, cohort_of):
    """At wide limits everybody is kept: a clipped mean."""
    x, counts, weights = rows(5), np.arange(1.0, 6.0), np.array([1.0, 0.5, 0.0, 1.0, 1.0])
    lengths = np.linalg.norm(x, axis=1)
    factors = np.minimum(1, np.median(lengths[weights > 0]) / lengths)
    shares = weights * (counts if weighted else 1.0)
    got = step(x, cohort_of, weights, counts, angle=99.0, signs=99.0, weighted=weighted).update
    np.testing.assert_allclose(got, shares / shares.sum() * factors @ x, atol=1e-12)


def test_where_nobody_is_left_the_model_stays(cohort_of):
    assert step(rows(4), cohort_of, angle=-1.0).update.tolist() == [0.0] * 10


def test_what_it_refuses(cohort_of):
    with pytest.raises(ValueError, match="alignins needs the cohort's params"):
        fw.aggregate("alignins", rows())
    with pytest.raises(ValueError, match="alignins needs n >= 3 clients; got n=2"):
        step(rows(2), cohort_of)
    with pytest.raises(ValueError, match="params of d=10 entries; got 4"):
        step(rows(), cohort_of, params=np.ones(4))
    for share in (0.05, 1.2, -0.5):
        with pytest.raises(ValueError, match=f"1 <= share \\* d <= d entries; got share={share}, d=10, n=9"):
            step(rows(), cohort_of, share=share)
