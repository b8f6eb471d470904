"""The laws of a rule: scores in, flags and a threshold out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ..core.errors import returned
from ..core.protocols import Rule
from ..core.stats import Scores
from ..core.types import Verdict
from .component import Component
from .law import laws, require, same

TESTS = (1, 2, 7, 50)

subject = Component.make


def cases(whole: bool = False) -> Iterator[tuple[Scores, int]]:
    """Scores of 0 to 30 clients, some of them equal and some far out, and the number of the test."""
    rng = np.random.default_rng(0)
    for n in (0, 1, 2, 3, 4, 5, 8, 13, 20, 30):
        for test in TESTS:
            for spread in (3, 1000):
                scores = rng.integers(0, spread, size=n).astype(np.float64)
                scores[: n // 4] += 500.0 * (test == 2)
                yield (scores if whole else scores * rng.uniform(0.5, 1.5, size=n)), test


def threshold_decides(rule: Rule) -> None:
    """Flagged is who scores above the threshold, which is a number."""
    for scores, test in cases():
        returned(isinstance(verdict := rule(scores, test), Verdict), "a rule returns a fedwarden.Verdict", verdict)
        require(not math.isnan(verdict.threshold), f"n={len(scores)}: expected a threshold; got NaN")
        got, want = np.asarray(verdict.flagged).tolist(), (scores > verdict.threshold).tolist()
        where = f"n={len(scores)}, threshold {verdict.threshold:.6g}"
        require(got == want, f"{where}: expected {sum(want)} flagged; got {got!s:.60}")


def equal_scores(rule: Rule) -> None:
    """No client is flagged among equal scores."""
    for value in (0.0, 1e-9, 0.1, 1.0, 7.3, 1e9):
        for n in range(41):
            got = int(np.sum(rule(np.full(n, value), 1 + n % 5).flagged))
            require(not got, f"{n} scores of {value:g}: expected no client flagged; got {got}")


def translation(rule: Rule) -> None:
    """A number added to every score moves the threshold by it."""
    for scores, test in cases(whole=True):
        for shift in (-100.0, 37.0):
            _threshold(rule, scores + shift, test, rule(scores, test).threshold + shift, f"plus {shift:g}")


def scaling(rule: Rule) -> None:
    """Scores times a positive number have the threshold times that number."""
    for scores, test in cases(whole=True):
        for scale in (0.25, 2.0, 1024.0):
            _threshold(rule, scale * scores, test, scale * rule(scores, test).threshold, f"times {scale:g}")


def _threshold(rule: Rule, scores: Scores, test: int, want: float, what: str) -> None:
    got = rule(scores, test).threshold
    near = got == want or abs(got - want) <= max(1e-9 * abs(want), 1e-6)
    require(near, f"{len(scores)} scores {what}: expected the threshold {want:.6g}; got {got:.6g}")


def permutation(rule: Rule) -> None:
    """A permutation of the scores permutes the flags."""
    rng = np.random.default_rng(1)
    for scores, test in cases():
        order = rng.permutation(len(scores))
        a, b = rule(scores, test), rule(scores[order], test)
        if math.isfinite(a.threshold):
            same(b.threshold, a.threshold, 1e-9, f"threshold of {len(scores)} scores in another order")
        plain = ~np.isclose(scores, a.threshold)[order]  # on the threshold itself, rounding decides
        got, want = b.flagged[plain].tolist(), a.flagged[order][plain].tolist()
        require(got == want, f"n={len(scores)}: expected the flags {want!s:.60}; got {got!s:.60}")


def outlier(rule: Rule) -> None:
    """One plain outlier among many is flagged, and nobody else."""
    scores = np.random.default_rng(0).normal(5.0, 1.0, size=40)
    scores[11] = 1e3
    got = np.flatnonzero(rule(scores, 1).flagged).tolist()
    require(got == [11], f"39 scores about 5 and one of 1000: expected client 11 flagged; got {got}")


def low_score(rule: Rule) -> None:
    """A low score is not suspicious."""
    scores = np.random.default_rng(0).uniform(5.0, 6.0, size=40)
    scores[11] = -1e3
    require(not rule(scores, 1).flagged[11], "39 scores about 5.5 and one of -1000: expected it unflagged; got flagged")


def too_few(rule: Rule) -> None:
    """Among one or two nobody is flagged, and nobody has an infinite threshold."""
    got = rule(np.zeros(0), 1).threshold
    require(got == math.inf, f"no scores: expected an infinite threshold; got {got}")
    for n in (1, 2):
        flagged = rule(np.arange(float(n)), 1).flagged
        require(not flagged.any(), f"scores {list(range(n))}: expected no client flagged; got {flagged.tolist()}")


def repeatable(rule: Rule) -> None:
    """The same scores and test number give the same verdict."""
    for scores, test in cases():
        a, b = rule(scores, test), rule(scores, test)
        require(a.threshold == b.threshold, f"n={len(scores)}: expected {a.threshold} again; got {b.threshold}")
        require(np.array_equal(a.flagged, b.flagged), f"n={len(scores)}: expected the same flags again; got others")


def input_untouched(rule: Rule) -> None:
    """The scores are only read."""
    for scores, test in cases():
        copy = scores.copy()
        rule(scores, test)
        require(np.array_equal(scores, copy), f"n={len(scores)}: expected the scores unchanged; got others")


LAWS = laws(
    threshold_decides, equal_scores, translation, scaling, permutation, outlier, low_score, too_few, repeatable,
    input_untouched,
)  # fmt: skip
