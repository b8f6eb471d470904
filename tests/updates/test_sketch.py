"""Sketches of rows: inner products as those of the rows, drawn by what no client knows before all have sent."""

import numpy as np
import pytest
import torch

from fedwarden.updates import cpu, plain
from fedwarden.updates.sketch import ALL_PAIRS, SIZE, hashing
from fedwarden.updates.updates import Updates

SOME = 64  # entries of a sketch in these tests


def by_hand(rows, drawn):
    """Column by column, from the formula."""
    k = len(drawn.signs)
    out = np.zeros((len(rows), k))
    for j, column in enumerate(rows.T):
        run = j // k
        out[:, (j + drawn.shifts[run]) % k] += drawn.signs[j % k] * drawn.flips[run] * column
    return out


@pytest.mark.parametrize("back_end", [plain, cpu])
def test_every_back_end_follows_the_formula(back_end):
    rows = np.random.default_rng(0).normal(size=(5, 500)).astype(np.float32)
    drawn = hashing(500, np.random.default_rng(1), SOME)
    found = back_end.sketch(Updates.of(torch.from_numpy(rows)), drawn)
    np.testing.assert_allclose(found, by_hand(rows, drawn), atol=1e-4)


@pytest.mark.parametrize("back_end", [plain, cpu])
def test_only_measured_columns_of_the_difference_to_the_base_count(back_end):
    rng = np.random.default_rng(0)
    rows, base = rng.normal(size=(5, 500)).astype(np.float32), rng.normal(size=500).astype(np.float32)
    measured = np.zeros(500, bool)
    measured[20:90] = measured[300:470] = True
    layers = [[torch.from_numpy(part.copy()) for part in np.split(row, [20, 90, 300, 470])] for row in rows]
    drawn = hashing(500, rng, SOME)
    for held in (torch.from_numpy(rows), layers):
        updates = Updates.of(held, torch.from_numpy(base), [(20, 90), (300, 470)])
        found = back_end.sketch(updates, drawn)
        np.testing.assert_allclose(found, by_hand((rows - base) * measured, drawn), atol=1e-4)


def test_files_are_read_as_well(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "RELEASE_BYTES", 2 * 4 * 500)  # two rows at a time
    rows = np.random.default_rng(0).normal(size=(5, 500)).astype(np.float32)
    paths = [tmp_path / f"{i}.npy" for i in range(5)]
    for path, row in zip(paths, rows, strict=True):
        np.save(path, row)
    drawn = hashing(500, np.random.default_rng(1), SOME)
    np.testing.assert_allclose(cpu.sketch(Updates.open(paths), drawn), by_hand(rows, drawn), atol=1e-4)


def vectors(kind, d=20 * SOME):
    rng = np.random.default_rng(5)
    x, y = {
        "noise": (rng.normal(size=d), rng.normal(size=d)),
        "alike": (np.ones(d), np.ones(d) + 0.1 * rng.normal(size=d)),
        "one entry": (np.eye(d)[3], np.eye(d)[3] + np.eye(d)[3 + SOME]),
        "one place of each run": (np.tile(np.eye(SOME)[3], 20), np.tile(np.eye(SOME)[3], 20)),
        "one run": (np.repeat(np.eye(20)[3], SOME), np.repeat(np.eye(20)[3], SOME)),
        "the same in each run": (np.tile(rng.normal(size=SOME), 20), rng.normal(size=d)),
    }[kind]
    return np.stack([x, y])


KINDS = ("noise", "alike", "one entry", "one place of each run", "one run", "the same in each run")


@pytest.mark.parametrize("kind", KINDS)
def test_inner_products_are_right_on_average_and_vary_as_promised(kind):
    rows, rng = vectors(kind), np.random.default_rng(0)
    exact = rows @ rows.T
    bound = np.sqrt((exact[0, 0] * exact[1, 1] + exact[0, 1] ** 2) / SOME)
    updates, found = Updates.of(rows), []
    for _ in range(600):
        z = plain.sketch(updates, hashing(rows.shape[1], rng, SOME)).numpy()
        found.append(z[0] @ z[1])
    assert abs(np.mean(found) - exact[0, 1]) < 5 * bound / np.sqrt(600)
    assert np.std(found) < 1.1 * bound * (1 if kind == "noise" else np.sqrt(3))


@pytest.mark.parametrize("n", [ALL_PAIRS, ALL_PAIRS + 1])
def test_only_many_clients_are_compared_by_sketches(n):
    updates = Updates.of(torch.randn(n, SIZE + 100, generator=torch.Generator().manual_seed(0)))
    compared = updates.compared()
    assert (compared is updates) == (n == ALL_PAIRS)
    assert compared is updates.compared()
    assert (compared.n, compared.d) == (n, SIZE + 100 if n == ALL_PAIRS else SIZE)


def test_short_rows_of_many_clients_are_compared_as_they_are():
    updates = Updates.of(torch.randn(ALL_PAIRS + 1, SIZE))
    assert updates.compared() is updates


def test_the_draw_hangs_on_all_updates():
    rows = torch.randn(ALL_PAIRS + 1, 2 * SIZE, generator=torch.Generator().manual_seed(0))
    other = rows.clone()
    other[-1] *= 1.1
    same, changed = (Updates.of(x).compared().array for x in (rows.clone(), other))
    assert torch.equal(Updates.of(rows).compared().array, same)
    assert not torch.allclose(same[:-1], changed[:-1])
