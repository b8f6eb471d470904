"""Partitions: every row once, sizes, what cannot be had, and seeds."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden.sim.data.partition import dirichlet_split
from fedwarden.sim.data.sources import Dataset


def data_of(labels, clients=None):
    y = torch.as_tensor(np.asarray(labels, dtype=np.int64))
    x = torch.zeros(len(y), 1)
    given = None if clients is None else tuple(np.asarray(c) for c in clients)
    return Dataset(x, y, x, y, int(y.max()) + 1, given)


def balanced(classes=5, each=40):
    return data_of(np.random.default_rng(1).permutation(np.repeat(np.arange(classes), each)))


def split(name, data, n, seed=0, **options):
    return make("partition", name, **options)(data, n, np.random.default_rng(seed))


def assert_every_row_once(parts, total):
    assert sorted(np.concatenate(parts).tolist()) == list(range(total))
    assert all((np.diff(part) > 0).all() for part in parts)  # and in the order of the data


@given(st.integers(1, 8), st.floats(0.05, 50), st.integers(0, 20), st.integers(0, 99))
def test_dirichlet_takes_every_row_once_and_keeps_the_minimum(n, alpha, smallest, seed):
    data = balanced()
    try:
        parts = split("dirichlet", data, n, seed, alpha=alpha, smallest=smallest)
    except ConfigError as error:
        assert "1,000 draws" in str(error)  # noqa: PT017
        return
    assert len(parts) == n
    assert_every_row_once(parts, len(data.y_train))
    assert min(len(p) for p in parts) >= smallest


def counts(data, part, classes=5):
    return np.bincount(data.y_train.numpy()[part], minlength=classes)


def test_the_shares_of_a_dirichlet_split_have_the_mean_and_variance_of_one():
    """Of a symmetric Dirichlet over n: mean 1/n, variance (1/n)(1 - 1/n) / (n alpha + 1)."""
    data, n, alpha = balanced(classes=2, each=1000), 3, 2.0
    shares = [
        counts(data, part, 2) / 1000 for seed in range(300) for part in split("dirichlet", data, n, seed, alpha=alpha)
    ]
    assert np.mean(shares) == pytest.approx(1 / n, abs=1e-9)
    assert np.var(shares) == pytest.approx((1 / n) * (1 - 1 / n) / (n * alpha + 1), rel=0.15)


def test_a_minimum_that_cannot_be_had():
    with pytest.raises(ConfigError, match="5 clients of at least 10 rows need 50 rows; there are 49"):
        split("dirichlet", data_of(np.zeros(49)), 5)
    with pytest.raises(ConfigError, match=r"no Dirichlet\(0.01\) split into 40 clients of at least 5 rows"):
        dirichlet_split(np.zeros(200, dtype=np.int64), 40, 0.01, 5, np.random.default_rng(0))
    with pytest.raises(ConfigError, match="alpha must be positive; got 0"):
        make("partition", "dirichlet", alpha=0)


@pytest.mark.parametrize("per_client", [1, 2, 3])
def test_shards_hold_few_labels(per_client):
    n = 10
    data = balanced(classes=5, each=6 * per_client * n // 5)  # shards of 6 rows, all of one label
    parts = split("shards", data, n, per_client=per_client)
    assert_every_row_once(parts, len(data.y_train))
    assert [len(p) for p in parts] == [6 * per_client] * n
    for part in parts:
        found = counts(data, part)
        assert (found % 6 == 0).all()
        assert np.count_nonzero(found) <= per_client


CLIENTS = [[0, 1], [1, 2], [3], [0, 3]]  # rows may belong to several, and some to nobody


@pytest.mark.parametrize(("first", "n"), [(0, 4), (0, 2), (1, 3), (3, 1)])
def test_given_are_the_clients_of_the_data(first, n):
    parts = split("given", data_of(np.zeros(6), CLIENTS), n, first=first)
    assert [p.tolist() for p in parts] == CLIENTS[first : first + n]


def test_given_clients_that_are_not_there():
    with pytest.raises(ConfigError, match=r"without clients; choose partition 'iid', 'dirichlet' or 'shards'"):
        split("given", data_of(np.zeros(6)), 2)
    for first, n in ((0, 5), (2, 3), (4, 1)):
        with pytest.raises(ConfigError, match=f"has 4 clients; asked for {first}"):
            split("given", data_of(np.zeros(6), CLIENTS), n, first=first)


@pytest.mark.parametrize("even", [0.0, 0.3, 0.5, 1.0])
def test_parity_gives_each_client_its_size_and_ratio(even):
    data = balanced(classes=4, each=50)
    parts = split("parity", data, 3, size=30, even=even)
    assert [len(p) for p in parts] == [30] * 3
    assert len(np.unique(np.concatenate(parts))) == 90
    labels = data.y_train.numpy()
    assert all((labels[p] % 2 == 0).sum() == round(30 * even) for p in parts)


def test_parity_without_a_size_goes_as_far_as_the_rarer_kind():
    data = data_of([0] * 90 + [1] * 20)
    assert [len(p) for p in split("parity", data, 2)] == [20, 20]  # 10 odd ones each
    with pytest.raises(ConfigError, match="2 clients of 15 samples of odd classes need 30; there are 20"):
        split("parity", data, 2, size=30)
    with pytest.raises(ValueError, match="even lies in"):
        split("parity", data, 2, even=1.5)


def test_an_owner_holds_its_class_alone():
    data = balanced()
    parts = split("owner", data, 4, label=2, owners=[1])
    assert_every_row_once(parts, len(data.y_train))
    assert [counts(data, part)[2] for part in parts] == [0, 40, 0, 0]
    assert [len(part) for part in parts] == [40, 80, 40, 40]


def test_what_is_left_of_a_class_goes_to_the_others():
    data = balanced()
    parts = split("owner", data, 3, label=1, owners=[2], share=0.8)
    assert_every_row_once(parts, len(data.y_train))
    assert [counts(data, part)[1] for part in parts] == [4, 4, 32]
    uneven = split("owner", data, 3, label=1, owners=[2], share=0.8, alpha=0.3, smallest=5)
    assert_every_row_once(uneven, len(data.y_train))
    assert counts(data, uneven[2])[1] == 32
    assert len({len(part) for part in uneven}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": 9}, "1 owners of class 9 need a row each; the training data have 0"),
        ({"owners": [4]}, "needs owners from 0 to 3"),
        ({"owners": [0, 1, 2, 3]}, "and another client"),
        ({"owners": []}, "owners are different clients"),
        ({"owners": [1, 1]}, "owners are different clients"),
        ({"share": 0.0}, r"share lies in \(0, 1\]; got 0.0"),
        ({"alpha": -1.0}, "alpha must be positive"),
    ],
)
def test_an_owner_that_cannot_be(options, message):
    with pytest.raises(ConfigError, match=message):
        split("owner", balanced(), 4, **options)


def test_a_large_client_has_so_many_times_as_much():
    data = balanced()
    parts = split("large", data, 11, times=10, which=[3])
    assert_every_row_once(parts, len(data.y_train))
    assert [len(part) for part in parts] == [10, 10, 10, 100, 10, 10, 10, 10, 10, 10, 10]
    with pytest.raises(ConfigError, match="names clients"):
        split("large", data, 3, which=[3])
    with pytest.raises(ConfigError, match="times is positive"):
        split("large", data, 3, times=0)
