"""What the target model says of the participant's own samples, and how its answers moved.

Mean answers by class see a shift of the labels themselves, where weights and representations see new samples as well.
Beside them stand the usual measures: loss, accuracy, and tests for a shift from the literature.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist
from scipy.special import log_softmax, softmax, stdtr

from ..core.stats import Scores

Matrix = NDArray[np.float64]
Labels = NDArray[np.int64]

FLOOR = 1e-9  # smallest deviation of a change, relative to the largest past one
PAIRS = 1000  # samples whose distances set the width of the kernel


def mean_logits(logits: Matrix) -> Scores:
    """The mean logit of each class over the samples, less the mean over classes, which no prediction depends on.

    >>> mean_logits(np.array([[1.0, 3.0], [2.0, 8.0]])).tolist()
    [-2.0, 2.0]
    """
    means = logits.mean(axis=0)
    return np.asarray(means - means.mean(), dtype=np.float64)


def mean_softmax(logits: Matrix, labels: Labels) -> Scores:
    """The mean predicted probability of each class, with every class of the probe counting the same.

        q = mean over classes c of mean over samples i of class c of softmax(logits_i)

    >>> mean_softmax(np.log([[0.2, 0.8], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 0, 1])).round(6).tolist()
    [0.4, 0.6]
    """
    return np.asarray(_by_class(softmax(logits, axis=1), labels).mean(axis=0), dtype=np.float64)


def standardised_change(change: Scores, past: Matrix) -> Scores:
    """The change of each class in units of its past changes (m, classes), of which there may be few.

        z_c = (change_c - mean_c) / s_c,   s_c^2 = (v_c + median over classes of v) / 2,   v_c = variance of the past

    Half of the variance is shared by the classes, so that a class that happened to hold still does not cry wolf (as in
    Smyth, Linear Models and Empirical Bayes Methods (2004), with equal parts). Deviations have a floor of 1e-9 of the
    largest past change.

    >>> past = np.array([[1.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    >>> standardised_change(np.array([2.0, 1.0]), past).round(6).tolist()
    [2.0, 1.732051]
    """
    if len(past) < 2:
        raise ValueError(f"a change is standardised by at least 2 past changes; got {len(past)}")
    variances = past.var(axis=0, ddof=1)
    deviations = np.sqrt((variances + np.median(variances)) / 2)
    floor = max(FLOOR * float(np.abs(past).max()), np.finfo(np.float64).tiny)
    return np.asarray((change - past.mean(axis=0)) / np.maximum(deviations, floor), dtype=np.float64)


def change_p(change: Scores, past: Matrix) -> float:
    """The probability of a change at least as far from the past ones in some class, by chance.

        p = min(1, C min_c p_c),   p_c = 2 P(T_{m-1} > |change_c - mean_c| / (sqrt(v_c) sqrt(1 + 1/m)))

    Student's prediction interval of each class, with Bonferroni's correction over the C classes: holds for independent
    Gaussian changes, whatever ties the classes together.

    >>> round(change_p(np.array([3.0, 0.0]), np.array([[1.0, 1.0], [-1.0, -1.0]])), 4)  # T_1 > sqrt(3)
    0.6667
    """
    m = len(past)
    floor = max(FLOOR * float(np.abs(past).max()), np.finfo(np.float64).tiny)
    deviations = np.maximum(past.std(axis=0, ddof=1), floor) * np.sqrt(1 + 1 / m)
    tails = 2 * stdtr(m - 1, -np.abs(change - past.mean(axis=0)) / deviations)
    return min(float(len(change) * tails.min()), 1.0)


def loss(logits: Matrix, labels: Labels) -> float:
    """The mean cross-entropy.

    >>> round(loss(np.log([[0.5, 0.5], [0.25, 0.75]]), np.array([0, 1])), 4)  # (log 2 + log 4/3) / 2
    0.4904
    """
    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())


def accuracy(logits: Matrix, labels: Labels) -> float:
    """The share of samples whose largest logit is that of their class; NaN where a logit is.

    >>> accuracy(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([0, 1]))
    0.5
    """
    return math.nan if np.isnan(logits).any() else float((logits.argmax(axis=1) == labels).mean())


def ks(before: Matrix, after: Matrix) -> float:
    """The largest Kolmogorov-Smirnov distance over classes, between predicted probabilities before and after.

        max_c sup_x |F_c(x) - F'_c(x)|

    Rabanser et al., Failing Loudly, arXiv 1810.11953 (univariate tests on softmax outputs). Differs from the paper:
    the samples stay and the model changes.

    >>> ks(np.log([[0.9, 0.1], [0.2, 0.8]]), np.log([[0.9, 0.1], [0.9, 0.1]]))
    0.5
    """
    p, q = np.sort(softmax(before, axis=1), axis=0), np.sort(softmax(after, axis=1), axis=0)

    def gap(x: Scores, y: Scores) -> float:  # both sorted; ks_2samp spends most of its time on what is not asked here
        places = np.concatenate([x, y])
        below = [np.searchsorted(values, places, side="right") / len(values) for values in (x, y)]
        return float(np.abs(below[0] - below[1]).max())

    return max(gap(x, y) for x, y in zip(p.T, q.T, strict=True))


def mmd(before: Matrix, after: Matrix) -> float:
    """Squared maximum mean discrepancy of the predicted probabilities with a Gaussian kernel.

        MMD^2 = mean k(x, x') + mean k(y, y') - 2 mean k(x, y),   k(x, y) = exp(-||x - y||^2 / (2 w^2))

    Gretton et al., A Kernel Two-Sample Test (2012), eq. 5 (the biased estimate, never negative). w is the median
    distance between distinct samples of both, of at most 1,000 evenly spaced ones. Takes N^2 numbers of memory.

    >>> round(mmd(np.log([[0.5, 0.5]]), np.log([[0.5, 0.5]])), 6)
    0.0
    """
    p, q = softmax(before, axis=1), softmax(after, axis=1)
    pooled = np.concatenate([p, q])
    distances = pdist(pooled[:: -(-len(pooled) // PAIRS)])
    distances = distances[distances > 0]
    if not len(distances):
        return 0.0
    scale = 2 * float(np.median(distances)) ** 2
    same = sum(float(np.exp(-cdist(x, x, "sqeuclidean") / scale).mean()) for x in (p, q))
    return max(same - 2 * float(np.exp(-cdist(p, q, "sqeuclidean") / scale).mean()), 0.0)


def bbse(confusion: Matrix, predicted: Scores) -> Scores:
    """Black-box shift estimate: by what factor each label became more frequent, from predictions alone.

        w = C^-1 mu,   C[i, j] = P(prediction i, label j) where labels are known,   mu[i] = P(prediction i) now

    Lipton et al., Detecting and Correcting for Label Shift with Black Box Predictors, arXiv 1802.03916, eq. 3 and
    algorithm 1; the soft form averages probabilities. Differs from the paper: least squares where C cannot be inverted.

    >>> bbse(np.array([[0.4, 0.1], [0.1, 0.4]]), np.array([0.35, 0.65])).round(6).tolist()
    [0.5, 1.5]
    """
    return np.asarray(np.linalg.lstsq(confusion, predicted, rcond=None)[0], dtype=np.float64)


def label_shift(before: Matrix, after: Matrix, labels: Labels) -> float:
    """The largest departure from 1 of the label frequencies that would explain the new predictions: max_c |w_c - 1|.

    The confusion matrix is that of the model before, with every class of the probe counting the same; the predictions
    are those of the model after, on the same samples. So it reads a change of the model as a change of labels.

    >>> model = np.log([[0.9, 0.1], [0.2, 0.8]])
    >>> round(label_shift(model, model, np.array([0, 1])), 6)
    0.0
    """
    rows = _by_class(softmax(before, axis=1), labels)
    weights = bbse(rows.T / len(rows), mean_softmax(after, labels))
    return float(np.abs(weights - 1).max())


def _by_class(values: Matrix, labels: Labels) -> Matrix:
    """The mean row of each class that the labels name: (classes named, columns)."""
    return np.stack([values[labels == c].mean(axis=0) for c in np.unique(labels)])
