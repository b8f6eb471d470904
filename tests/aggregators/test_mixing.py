"""Wrappers: any rule inside, its memory, its server and its options."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden.aggregators.mixing import Bucketing, NearestNeighbourMixing, neighbour_matrix
from fedwarden.core.errors import ConfigError
from fedwarden.core.registry import make
from fedwarden_research.conformance import golden

MIXERS = {"nearest_neighbour_mixing": {"f": 2}, "bucketing": {"s": 2}}
WRAPPERS = {**MIXERS, "arc": {"f": 2}}


def rows(t=0, n=9, d=6):
    return np.random.default_rng(t).normal(size=(n, d)) + np.linspace(0, 1, d)


@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize(
    ("then", "loop"),
    [
        ("median", golden.median),
        ({"name": "trimmed_mean", "b": 3}, lambda y: golden.trimmed_mean(y, 3)),
        ({"name": "multi_krum", "f": 1, "m": 2}, lambda y: golden.multi_krum(y, 1, 2)),
        ({"name": "norm_clipping", "limit": 0.5}, lambda y: golden.norm_clipping(y, 0.5)),
        (make("aggregator", "krum", f=2), lambda y: golden.krum(y, 2)),
    ],
    ids=lambda value: "",
)
def test_a_name_a_table_or_a_thing_inside(f, then, loop):
    x = rows()
    got = fw.aggregate("nearest_neighbour_mixing", x, f=f, then=then).update
    mixed = golden.nearest_neighbour_mixing(x, f, lambda y: y.ravel()).reshape(x.shape)
    np.testing.assert_allclose(got, loop(mixed), atol=1e-9)


@pytest.mark.parametrize("s", [1, 2, 4, 9, 20])
def test_buckets_of_any_size(s):
    x = rows()
    got = fw.aggregate("bucketing", x, s=s, then={"name": "mean", "weighted": False}).update
    if s in (1, 9, 20):
        np.testing.assert_allclose(got, x.mean(axis=0), atol=1e-12)  # one bucket, or nine
    result = fw.aggregate("bucketing", x, s=s, then="mean")
    sizes = [s] * (9 // s) + ([9 % s] if 9 % s else [])
    want = sorted(1 / len(sizes) / size for size in sizes for _ in range(size))
    np.testing.assert_allclose(np.sort(result.weights), want)


def test_buckets_are_drawn_by_id_anew_every_round_and_from_the_seed(cohort_of):
    x, then = rows(n=6), {"name": "krum", "f": 0}

    def partners(seed=0, round=1, order=range(6)):
        order = list(order)
        cohort = cohort_of(x[order], [f"c{i}" for i in order], round=round)
        return {
            cohort.client_ids[i]
            for i in np.flatnonzero(Bucketing(2, then, seed).step({}, cohort, np.ones(6))[1].weights)
        }

    assert all(len(partners(round=t)) == 2 for t in range(1, 5))
    assert partners() == partners(order=(5, 3, 1, 0, 2, 4))
    assert len({frozenset(partners(round=t)) for t in range(1, 12)}) > 1
    assert len({frozenset(partners(seed=s)) for s in range(12)}) > 1


@pytest.mark.parametrize("mixer", MIXERS)
def test_weights_are_told_in_terms_of_the_clients(mixer, cohort_of):
    x, keep = rows(), np.array([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    rule = make("aggregator", mixer, then="geometric_median", **MIXERS[mixer])
    result = rule.step(rule.init(), cohort_of(x), keep)[1]
    assert result.weights.shape == (9,)
    assert result.weights[[2, 6]].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(result.weights @ x, result.update, atol=1e-9)
    left = np.flatnonzero(keep)
    ids = [chr(ord("a") + i) for i in left]
    alone = rule.step(rule.init(), cohort_of(x[left], ids), np.ones(7))[1]
    np.testing.assert_allclose(alone.update, result.update, atol=1e-12)


@pytest.mark.parametrize("mixer", WRAPPERS)
def test_a_rule_with_a_memory_keeps_it(mixer, cohort_of):
    """Clipping about a centre of one step: the loop in d dimensions on the mixed rows of each round."""
    rule = make("aggregator", mixer, then={"name": "centered_clipping", "limit": 0.7, "steps": 1}, **WRAPPERS[mixer])
    plain = make("aggregator", mixer, then="median", **WRAPPERS[mixer])
    state, centre = rule.init(), np.zeros(6)
    for t in range(1, 5):
        cohort = cohort_of(rows(t), round=t)
        seen = []

        class Spy:
            def init(self):
                return {}

            def step(self, state, cohort, weights):
                seen.append(np.concatenate([b.numpy() for _, _, b in cohort.updates.blocks()], axis=1))  # noqa: B023
                return state, fw.Aggregate(torch.zeros(6))

        type(plain)(**{**plain.__dict__, "then": Spy()}).step({}, cohort, np.ones(9))
        state, result = rule.step(state, cohort, np.ones(9))
        centre = golden.centered_clipping(seen[0], 0.7, 1, centre)
        np.testing.assert_allclose(result.update, centre, atol=1e-9)
    np.testing.assert_array_equal(state["centre"], result.update)


def test_inside_nearest_neighbours_a_memory_is_of_the_clients(cohort_of):
    rule = NearestNeighbourMixing(2, "foolsgold")
    state = rule.init()
    for t, ids in enumerate(("abcdefghi", "ihgfedcba"), 1):
        state, _ = rule.step(state, cohort_of(rows(t), ids, round=t), np.ones(9))
    assert sorted(state) == list("abcdefghi")
    assert sorted(Bucketing(4, "foolsgold").step({}, cohort_of(rows()), np.ones(9))[0]) == ["0", "1", "2"]


@pytest.mark.parametrize("mixer", WRAPPERS)
def test_the_server_reaches_the_rule_inside(mixer, cohort_of):
    root = torch.ones(6, dtype=torch.float64)
    warden = fw.Warden(aggregator={"name": mixer, "then": "fltrust", **WRAPPERS[mixer]})
    with pytest.raises(ConfigError, match="fltrust needs a server with data of its own"):
        warden.equip(fw.Server())
    update = (
        warden.equip(fw.Server(root=lambda params, round: root)).step(cohort_of(rows(), params=torch.zeros(6))).update
    )
    given = make("aggregator", mixer, then={"name": "fltrust", "root": root}, **WRAPPERS[mixer])
    np.testing.assert_allclose(update, given.step({}, cohort_of(rows()), np.ones(9))[1].update, atol=1e-12)


def test_options_that_are_none():
    with pytest.raises(ValueError, match=r"nearest-neighbour mixing needs n > 2f clients and f >= 0; got n=9, f=5"):
        fw.aggregate("nearest_neighbour_mixing", rows(), f=5)
    with pytest.raises(ValueError, match="got n=9, f=-1"):
        neighbour_matrix(np.zeros((9, 9)), -1)
    with pytest.raises(ValueError, match="buckets of at least one update; got s=0"):
        fw.aggregate("bucketing", rows(), s=0)
    with pytest.raises(ConfigError, match="did you mean 'median'"):
        fw.aggregate("bucketing", rows(), then="medain")
    with pytest.raises(ConfigError, match="'trimmed_mean' has no option 'c'"):
        fw.aggregate("bucketing", rows(), then={"name": "trimmed_mean", "c": 1})


def test_by_default_half_of_the_clients_are_neighbours():
    x = rows(n=8)  # f = 3: the five closest
    want = golden.nearest_neighbour_mixing(x, 3, lambda y: golden.trimmed_mean(y, 1))
    np.testing.assert_allclose(fw.aggregate("nearest_neighbour_mixing", x).update, want, atol=1e-9)
