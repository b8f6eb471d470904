"""The parts of all workers add up to what one process reads; a worker is a plain object here."""

import numpy as np
import pytest
import torch

from fedwarden.shards.worker import Worker
from fedwarden.updates.sketch import hashing
from fedwarden.updates.updates import Updates

N, D, INDEX = 6, 1001, (4, 0, 2, 5)
CUTS = [(0, 300), (300, 301), (301, D)]


@pytest.fixture(params=["float32", "float64", "float16 beside float32"])
def case(request, tmp_path):
    """Workers that hold whole models in files, and what one process makes of the updates of some of them."""
    dtype, rng = request.param.split()[-1], np.random.default_rng(0)
    base, rows = rng.normal(size=D).astype(dtype), list(rng.normal(1.0, size=(N, D)).astype(dtype))
    if dtype != request.param:
        rows[::2] = [row.astype(np.float16) for row in rows[::2]]
    np.save(tmp_path / "base.npy", base)
    for i, row in enumerate(rows):
        np.save(tmp_path / f"{i}.npy", row)
    workers = [Worker(a, b, D, dtype, threads=torch.get_num_threads()) for a, b in CUTS]
    for worker in workers:
        worker.begin(str(tmp_path / "base.npy"), None)
        assert worker.open({i: str(tmp_path / f"{i}.npy") for i in range(N)}) == {}
    return workers, Updates.of([rows[i] for i in INDEX], torch.from_numpy(base)), base, dtype


def test_surveys_and_inner_products_add_up(case):
    workers, whole, _, dtype = case
    centre, shares = np.array([0.5, 0.0, 0.5, 0.0]), np.array([0.1, 0.2, 0.3, 0.4])
    survey = whole.survey(centre > 0, shares)
    expected = [survey.sq_norms, survey.sq_lengths, survey.sq_distances]
    bound = 1e-6 if dtype == "float32" else 1e-13
    assert np.allclose(sum(w.survey(INDEX, centre, shares, True) for w in workers), expected, rtol=bound)
    assert np.allclose(sum(w.gram(INDEX, 2) for w in workers), whole.products_about(2), rtol=10 * bound, atol=bound)


def test_sketches_add_up(case):
    workers, whole, _, dtype = case
    drawn = hashing(D, np.random.default_rng(0), 64)
    parts = [w.sketch(INDEX, drawn._replace(first=a)) for w, (a, _) in zip(workers, CUTS, strict=True)]
    np.testing.assert_allclose(sum(parts), whole.sketch(drawn).numpy(), atol=1e-4 if dtype == "float32" else 1e-12)


def test_samples_stand_side_by_side(case):
    workers, whole, _, _ = case
    columns = np.array([0, 299, 300, 301, 302, D - 1])
    parts = [
        w.sample(INDEX, columns[(columns >= a) & (columns < b)] - a) for w, (a, b) in zip(workers, CUTS, strict=True)
    ]
    assert np.array_equal(np.concatenate(parts, axis=1), whole.sample(columns).numpy())


@pytest.mark.parametrize(("fold", "argument"), [("weighted_sum", np.array([0.5, 0.0, 0.2, 0.3])), ("nearest_mean", 3)])
@pytest.mark.parametrize("surveyed", [False, True])
def test_each_writes_its_part_of_one_file(case, tmp_path, fold, argument, surveyed):
    workers, whole, base, dtype = case
    np.save(tmp_path / "out.npy", np.full(D, np.nan, dtype))
    offset = (tmp_path / "out.npy").stat().st_size - D * np.dtype(dtype).itemsize
    for add in (False, True):
        for worker in workers:
            if surveyed:  # of which a part is made rather than read again
                worker.survey(INDEX, np.full(4, 0.25), np.array([0.5, 0.1, 0.1, 0.3]), True)
            worker.write(INDEX, fold, (argument,), str(tmp_path / "out.npy"), offset, add)
        expected = getattr(whole, fold)(argument).numpy() + add * base
        assert np.allclose(np.load(tmp_path / "out.npy"), expected, rtol=0, atol=2e-6)
