"""The folds on a GPU give what plain torch gives: on a GPU where there is one, else by Triton's interpreter."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

import numpy as np
import pytest
import torch

CUDA = torch.cuda.is_available()
if not CUDA:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

from fedwarden.updates import gpu, plain  # noqa: E402
from fedwarden.updates.mixed import Mixed  # noqa: E402
from fedwarden.updates.updates import Updates  # noqa: E402

DEVICE = torch.device("cuda" if CUDA else "cpu")
BOUND = 1e-5  # of the largest entry: sums of a thousand numbers in float32, in another order
SIZES = (1, 2, 5, 20, 50, 65, 130)
LAYERS = (1030, 1, 37, 130)


def numbers(n: int, d: int) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(n)).to(DEVICE)


def layered(n: int, types: tuple[torch.dtype, ...]) -> list[list[torch.Tensor]]:
    rows = [row.split(LAYERS) for row in numbers(n, sum(LAYERS))]
    whole = [[layer.clone() * (10 if k == 1 else 1) for k, layer in enumerate(row)] for row in rows]
    return [[layer.to(types[k % len(types)]) for k, layer in enumerate(row)] for row in whole]


def stacked(n: int) -> Updates:
    return Updates.of(numbers(n, 1200))


def layers(n: int) -> Updates:
    return Updates.of(layered(n, (torch.float32,)))


def mixed_types(n: int) -> Updates:
    """Among them a counter, which is not measured."""
    return Updates.of(layered(n, (torch.float16, torch.int64, torch.bfloat16, torch.float32)))


def halves(n: int) -> Updates:
    return Updates.of(layered(n, (torch.bfloat16,)))


def models(n: int) -> Updates:
    return Updates.of(layered(n, (torch.float32,)), base=numbers(99, sum(LAYERS))[0])


def partly_measured(n: int) -> Updates:
    return Updates.of(numbers(n, 700), measured=[(0, 100), (250, 251), (300, 700)])


def strided(n: int) -> Updates:
    """Rows that no kernel reads where they lie."""
    return Updates.of(numbers(700, n).T)


def combined(n: int) -> Updates:
    matrix = np.random.default_rng(0).random((n, n))
    return Mixed(Updates.of(numbers(n, 300)), matrix / matrix.sum(axis=1, keepdims=True))


CASES: tuple[Callable[[int], Updates], ...] = (
    stacked, layers, mixed_types, halves, models, partly_measured, strided, combined,
)  # fmt: skip


def error(got: object, wanted: object) -> float:
    """The largest difference as a part of the largest entry; infinite where one is not finite and the other is."""
    a, b = (np.asarray(torch.as_tensor(x).cpu(), np.float64) for x in (got, wanted))
    if not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    some = np.isfinite(b)
    return float(np.abs(a[some] - b[some]).max(initial=0.0) / max(float(np.abs(b[some]).max(initial=0.0)), 1e-30))


def shares_of(n: int) -> np.ndarray:
    shares = np.random.default_rng(n).random(n) + 0.1
    return shares / shares.sum()


def survey(u: Updates) -> float:
    even, shares = np.full(u.n, 1 / u.n), shares_of(u.n)
    ways = ((even, shares, True), (even, even, True), (even, shares, False))
    pairs = [(gpu.survey(u, *way), plain.survey(u, *way)) for way in ways]
    return max(error(a, b) for got, wanted in pairs for a, b in zip(got, wanted, strict=True))


def weighted_sum(u: Updates) -> float:
    w, before = shares_of(u.n) - 0.3, numbers(7, u.d)[0]
    return max(
        error(gpu.weighted_sum(u, w, None, 1.0), plain.weighted_sum(u, w, None, 1.0)),
        error(gpu.weighted_sum(u, w, before, 0.5), plain.weighted_sum(u, w, before, 0.5)),
    )


def gram(u: Updates) -> float:
    return error(gpu.gram(u, u.n // 2), plain.gram(u, u.n // 2))


def ranked_mean(u: Updates) -> float:
    n = u.n
    ranges = {((n - 1) // 2, n // 2 + 1), (0, n), (n // 4, n - n // 4)}
    return max(error(gpu.ranked_mean(u, *r), plain.ranked_mean(u, *r)) for r in ranges)


def nearest_mean(u: Updates) -> float:
    keeps = {1, max(1, u.n // 2), u.n}
    return max(error(gpu.nearest_mean(u, k), plain.nearest_mean(u, k)) for k in keeps)


def sample(u: Updates) -> float:
    columns = np.unique(np.random.default_rng(1).integers(0, u.d, 300))
    return error(gpu.sample(u, columns), plain.sample(u, columns))


FOLDS: tuple[Callable[[Updates], float], ...] = (survey, weighted_sum, gram, ranked_mean, nearest_mean, sample)


def spoilt(value: float) -> Updates:
    rows = numbers(6, 400)
    rows[2, 17] = value
    return Updates.of(rows)


def rank_errors(value: float) -> float:
    """The rest of the values in a column that has one which is not finite."""
    u = spoilt(value)
    return max(ranked_mean(u), nearest_mean(u))


def spoils_only_itself(value: float) -> bool:
    """A row that is not finite shows in its own norm, and one of weight 0 leaves sums and distances as they are."""
    u, trusted = spoilt(value), np.array([0.2, 0.2, 0.0, 0.2, 0.2, 0.2])
    norms, lengths, distances, total = gpu.survey(u, trusted, trusted, True)
    alone = np.arange(6) == 2
    others = u.select(np.flatnonzero(~alone))
    clean = plain.survey(others, np.full(5, 0.2), np.full(5, 0.2), True)
    products = gpu.gram(u, 0)
    fine = [np.array_equal(~np.isfinite(x), alone) for x in (norms, lengths, distances)]
    near = [error(got[~alone], wanted) < BOUND for got, wanted in zip((norms, lengths, distances), clean, strict=False)]
    kept = np.isfinite(products[np.ix_([0, 1, 3, 4, 5, 6], [0, 1, 3, 4, 5, 6])]).all()
    own = not np.isfinite(products[2, 2])
    return all(fine) and all(near) and error(total, clean[3]) < BOUND and bool(kept) and own


def far_column() -> float:
    """Near clients about a far point: differences stay exact."""
    rows = 1000 + numbers(9, 900) * 1e-2
    got, wanted = gpu.gram(Updates.of(rows), 4), (rows.double() - rows[4].double()).cpu().numpy()
    return error(got[:9, :9], wanted @ wanted.T)


pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")]


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_same_as_plain_torch(case, n):
    if not CUDA and n > 5 and case is not stacked:
        pytest.skip("the interpreter takes too long")
    found = {fold.__name__: fold(case(n)) for fold in FOLDS}
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_spoils_only_itself(value):
    assert spoils_only_itself(value)
    assert rank_errors(value) < BOUND


def test_differences_of_near_clients_stay_exact():
    assert far_column() < BOUND


def test_two_calls_give_the_same_bits():
    u = stacked(50)
    shares = shares_of(50)
    for a, b in zip(gpu.survey(u, shares, shares, True), gpu.survey(u, shares, shares, True), strict=True):
        assert np.array_equal(np.asarray(torch.as_tensor(a).cpu()), np.asarray(torch.as_tensor(b).cpu()))
    assert np.array_equal(gpu.gram(u, 3), gpu.gram(u, 3))


def test_products_that_were_begun_are_those_of_their_rows():
    u, other = stacked(50), stacked(65)
    begun = gpu.begin_gram(u, 3)
    later = [gpu.begin_gram(other, 5) for _ in range(3)]
    assert np.array_equal(begun(), gpu.gram(u, 3))
    for wait in later:
        assert np.array_equal(wait(), gpu.gram(other, 5))


@pytest.mark.skipif(not CUDA, reason="no GPU")
def test_rows_on_a_gpu_are_read_by_the_kernels():
    assert Updates.of(torch.zeros(50, 10_000, device=DEVICE))._back_end() is gpu


@pytest.mark.skipif(not CUDA, reason="no GPU")
def test_rows_that_begin_their_products_have_the_same_ones():
    rows = numbers(50, 10_000)
    u = Updates.of(rows)
    u.begin_products()
    assert u._gram is None
    assert np.array_equal(u.gram(), Updates.of(rows).gram())
    assert np.array_equal(u.select([1, 2, 7]).gram(), u.gram()[np.ix_([1, 2, 7], [1, 2, 7])])
