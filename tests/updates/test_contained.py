"""Rows whose lone entries are cut, against a plain loop over segments and columns."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.updates.formed import Contained, Mixed, usual_sizes
from fedwarden.updates.updates import Updates

N, LAYERS, MEASURED = 9, (7, 3, 12), [(0, 7), (10, 22)]
MARKED = np.isin(np.arange(N), (1, 3, 7))
D = sum(LAYERS)


def drawn(seed=0, zeros=True):
    """Layers of each client, a few of them with entries that no other client has; and the base."""
    rng = np.random.default_rng(seed)
    rows, base = rng.normal(size=(N, D)), rng.normal(size=D)
    if zeros:
        rows[:, 12:16] *= 1e-3
        rows[1, 12:14] = 5.0
        rows[7, 15] = -7.0
        rows[3] = 0.0
    return rows, base


def made(rows, base=None):
    sent = rows if base is None else rows + base
    layers = [[torch.from_numpy(part) for part in np.split(row, np.cumsum(LAYERS)[:-1])] for row in sent]
    return Updates.of(layers, None if base is None else torch.from_numpy(base), MEASURED)


def cut_by_loop(rows, usual, marked=MARKED):
    """Column by column and client by client."""
    inside = [j for a, b in MEASURED for j in range(a, b)]
    lengths = [np.sqrt(sum(row[j] ** 2 for j in inside)) or 1.0 for row in rows]
    out = rows.copy()
    for j in inside:
        sizes = sorted(abs(rows[i, j]) / lengths[i] for i in range(len(rows)) if usual[i])
        most = sizes[len(sizes) - len(sizes) // 4 - 1]
        for i in range(len(rows)):
            if marked[i] and abs(rows[i, j]) / lengths[i] > most:
                out[i, j] = 0.0
    return out


def whole(updates):
    return torch.cat([block for _, _, block in updates.blocks()], dim=1).numpy()


@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.booleans(), min_size=N, max_size=N).filter(any),
    st.lists(st.booleans(), min_size=N, max_size=N),
)
def test_whatever_the_rows_and_the_clients_are(seed, usual, marked):
    rows, _ = drawn(seed, zeros=seed % 2 == 0)
    found = Contained(made(rows), np.array(usual), np.array(marked))
    np.testing.assert_allclose(whole(found), cut_by_loop(rows, usual, marked), atol=1e-12)


def test_a_selection_is_cut_by_what_all_do():
    rows, base = drawn()
    found = Contained(made(rows, base), np.ones(N, bool), MARKED)
    want = cut_by_loop(rows, [True] * N)
    some = found.select([7, 1, 3])
    np.testing.assert_allclose(whole(some), want[[7, 1, 3]], atol=1e-12)
    np.testing.assert_allclose(whole(some.select([2, 0])), want[[3, 7]], atol=1e-12)
    assert len(some) == 3


@pytest.mark.parametrize("with_base", [False, True])
def test_sums_lengths_and_products_are_those_of_the_rows(with_base):
    rows, base = drawn()
    found = Contained(made(rows, base if with_base else None), np.ones(N, bool), MARKED)
    want = cut_by_loop(rows, [True] * N)
    inside = np.r_[0:7, 10:22]
    weights = np.array([0.1, 0.0, 0.3, 0.2, 0.0, 0.1, 0.1, 0.2, 0.0])
    np.testing.assert_allclose(found.weighted_sum(weights), weights @ want, atol=1e-12)
    np.testing.assert_allclose(found.select([7, 1]).weighted_sum([0.5, 2.0]), 0.5 * want[7] + 2 * want[1], atol=1e-12)
    np.testing.assert_allclose(found.lengths(), np.linalg.norm(want[:, inside], axis=1), atol=1e-12)
    np.testing.assert_allclose(found.inner_products(), want[:, inside] @ want[:, inside].T, atol=1e-9)
    np.testing.assert_allclose(found.ranked_mean(4, 5)[inside], np.median(want, axis=0)[inside], atol=1e-12)
    columns = np.array([0, 12, 13, 15, 21])
    np.testing.assert_allclose(found.sample(columns), want[:, columns], atol=1e-12)


def test_rows_can_be_shortened_after_they_are_cut():
    rows, base = drawn()
    want, factors = cut_by_loop(rows, [True] * N), np.linspace(0.2, 1.0, N)
    found = Mixed(Contained(made(rows, base), np.ones(N, bool), MARKED), np.diag(factors))
    np.testing.assert_allclose(whole(found), factors[:, None] * want, atol=1e-12)
    np.testing.assert_allclose(found.weighted_sum(np.full(N, 1 / N)), factors @ want / N, atol=1e-12)
    sent = torch.cat(found.sent(7)).numpy()
    np.testing.assert_allclose(sent, factors[7] * want[7] + base, atol=1e-12)


def test_columns_of_some_of_the_rows_are_cut_by_their_whole_lengths():
    """As a worker does that holds some columns only: its part is that of one process."""
    rows, _ = drawn()
    rows[:, 7:10] = 0.0
    usual, weights = np.ones(N, bool), np.linspace(0.0, 0.2, N)
    lengths = np.linalg.norm(rows, axis=1)
    one = Contained(Updates.of(rows), usual, MARKED).weighted_sum(weights)
    parts = [Contained(Updates.of(rows[:, a:b]), usual, MARKED, whole=lengths) for a, b in ((0, 9), (9, D))]
    np.testing.assert_allclose(torch.cat([part.weighted_sum(weights) for part in parts]), one, atol=1e-12)


@given(st.integers(4, 24), st.integers(0, 2**32 - 1))
def test_less_than_a_quarter_cannot_raise_what_is_usual(n, seed):
    """Whatever they send, it is at most the largest entry of the others."""
    rng = np.random.default_rng(seed)
    f = (n - 1) // 4
    sizes = np.abs(rng.normal(size=(n, 6)))
    sizes[:f] = rng.choice([0.0, 1e9], size=(f, 6))
    usual = usual_sizes(torch.from_numpy(sizes), np.ones(n, bool)).numpy()
    assert (usual <= sizes[f:].max(axis=0)).all()
