"""Adapters against the dense matrices that they stand for, and replies that do not fit."""

from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden.guard.adapters import CUT, Adapters
from fedwarden.guard.arrays import Unfit

D_IN, D_OUT, RANK = 40, 30, 8
NAMES = ("layer.lora_A.weight", "layer.lora_B.weight", "head.bias")
MEASURED = [(0, RANK * D_IN), (RANK * D_IN, RANK * (D_IN + D_OUT)), (RANK * (D_IN + D_OUT), RANK * (D_IN + D_OUT) + 5)]


@dataclass(frozen=True)
class Sent:
    client_id: str
    layers: list = field(default_factory=list)
    count: float = 10.0


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def model(rng, rank=RANK):
    shapes = ((rank, D_IN), (D_OUT, rank), (5,))
    return [rng.standard_normal(shape).astype(np.float32) for shape in shapes]


def trained(rng, start, step=0.01):
    return [(a + step * rng.standard_normal(a.shape)).astype(np.float32) for a in start]


def product(layers, scale=1.0):
    return scale * layers[1].astype(float) @ layers[0]


def cut_to(dense, rank):
    u, s, v = np.linalg.svd(dense)
    return (u[:, :rank] * s[:rank]) @ v[:rank]


def fold(adapters, letters, whole):
    return adapters.fold(1, letters, NAMES, whole, MEASURED, {})


def mixed(rng, ranks=(8, 2, 4, 16, 8)):
    """A model, replies of clients of these ranks, and the dense update of each."""
    adapters, whole = Adapters(), model(rng)
    letters, updates = [], []
    for i, rank in enumerate(ranks):
        start = adapters.brought(NAMES, whole, [rank], str(i))
        letters.append(Sent(str(i), trained(rng, start)))
        updates.append(product(letters[-1].layers, RANK / rank) - cut_to(product(whole), rank))
    return whole, letters, updates


def test_distances_are_those_of_dense_updates_at_any_rank(rng):
    whole, letters, updates = mixed(rng)
    found = fold(Adapters(), letters, whole).cohort.updates.gram()
    rows = [np.concatenate([u.ravel(), x.layers[2] - whole[2]]) for u, x in zip(updates, letters, strict=True)]
    rows = np.stack([*rows, np.zeros(len(rows[0]))])
    dense = fw.Updates.of(rows[:-1]).gram()
    squares = [np.add.outer(np.diag(g), np.diag(g)) - 2 * g for g in (found, dense)]
    np.testing.assert_allclose(squares[0], squares[1], rtol=1e-6, atol=1e-9 * squares[1].max())


@pytest.mark.parametrize("rank", [None, 3, 12])
def test_the_sum_of_products_comes_back_at_the_rank_of_the_model(rng, rank):
    whole, letters, updates = mixed(rng)
    shares = np.array([0.1, 0.2, 0.3, 0.15, 0.25])
    folded = fold(Adapters(rank=rank), letters, whole)
    made, metrics = folded.unfold(folded.cohort.updates.weighted_sum(shares))
    dense = product(whole) + sum(s * u for s, u in zip(shares, updates, strict=True))
    layer, back = folded.layers[0], folded.backs[0][0]
    update = folded.cohort.updates.weighted_sum(shares)[None, -len(letters) :].numpy()
    m = layer.combined(update @ back) * layer.scales
    exact = ((layer.columns[0] * m) @ layer.rows[0]).numpy()
    assert np.linalg.norm(exact - dense) < 1e-10 * np.linalg.norm(dense)
    singular = np.linalg.svd(dense, compute_uv=False)
    kept = rank or RANK
    assert made[0].shape == (kept, D_IN)
    assert made[1].shape == (D_OUT, kept)
    best = np.sqrt((singular[kept:] ** 2).sum() / (singular**2).sum())
    assert metrics[CUT] == pytest.approx(best, rel=1e-5)
    scale = RANK / kept
    assert np.linalg.norm(product(made, scale) - dense) / np.linalg.norm(dense) == pytest.approx(best, rel=1e-3)
    first = product([made[0][:2], made[1][:, :2]], scale)
    np.testing.assert_allclose(first, cut_to(dense, 2), atol=1e-5 * singular[0])  # sorted: slices are the best ones
    np.testing.assert_allclose(
        made[2], whole[2] + sum(s * (x.layers[2] - whole[2]) for s, x in zip(shares, letters, strict=True)), rtol=1e-5
    )


def test_other_factors_of_one_product_are_the_same_update(rng):
    whole = model(rng)
    layers = trained(rng, whole)
    turn = np.linalg.qr(rng.standard_normal((RANK, RANK)))[0]
    others = [
        [layers[0] / 3, 3 * layers[1], layers[2]],
        [turn @ layers[0], layers[1] @ turn.T, layers[2]],
        [1e9 * layers[0], 1e-9 * layers[1], layers[2]],
    ]
    letters = [Sent(str(i), [np.float32(a) for a in x]) for i, x in enumerate([layers, *others])]
    gram = fold(Adapters(), letters, whole).cohort.updates.inner_products()
    assert gram == pytest.approx(np.full((4, 4), gram[0, 0]), rel=1e-4)


def test_one_huge_update_costs_the_others_no_digits(rng):
    whole, letters, updates = mixed(rng, (8, 8, 8))
    huge = Sent("huge", [1e14 * letters[0].layers[0], *letters[0].layers[1:]])
    products = fold(Adapters(), [*letters, huge], whole).cohort.updates.inner_products()
    biases = np.stack([x.layers[2] - whole[2] for x in letters]).astype(float)
    dense = np.array([[np.sum(a * b) for a in updates] for b in updates]) + biases @ biases.T
    np.testing.assert_allclose(products[:3, :3], dense, rtol=1e-6, atol=1e-7 * dense.max())


def test_the_model_sent_back_in_other_factors_is_idle(rng):
    whole, letters, _ = mixed(rng, (8, 8, 8, 8))
    back = Sent("back", [np.float32(whole[0] / 3), 3 * whole[1], whole[2]])
    outcome = fw.Warden.preset("auto").of_products().step(fold(Adapters(), [*letters, back], whole).cohort)
    assert [(r.client_id, r.reason.kind) for r in outcome.record.rejected] == [("back", "idle")]


def test_a_step_on_a_factor_changes_the_model_as_little_as_its_product_allows(rng):
    whole = model(rng)
    letters = [Sent(str(i), trained(rng, whole)) for i in range(3)]
    folded = fold(Adapters(), letters, whole)
    made, _ = folded.unfold(folded.cohort.updates.weighted_sum(np.full(3, 1 / 3)))
    singular = np.linalg.svd(np.mean([product(x.layers) for x in letters], axis=0), compute_uv=False)[:RANK]
    rows, columns = np.linalg.norm(made[0], axis=1), np.linalg.norm(made[1], axis=0)
    shortest = np.linalg.norm(whole[0], axis=1).min()
    assert (singular < shortest**2).any()
    assert (singular > shortest**2).any()
    np.testing.assert_allclose(rows * columns, singular, rtol=1e-5)
    np.testing.assert_allclose(rows, np.maximum(shortest, np.sqrt(singular)), rtol=1e-5)


def test_layers_of_one_shape_and_of_others_are_what_each_is_alone(rng):
    shapes = {"a": (D_IN, D_OUT, 8), "b": (D_IN, D_OUT, 8), "c": (D_IN, 12, 8), "d": (D_IN, D_OUT, 4)}
    ranks = {"a": (8, 2, 8), "b": (8, 4, 16), "c": (8, 8, 8), "d": (4, 4, 4)}
    parts = {}
    for name, (wide, high, rank) in shapes.items():
        whole = [rng.standard_normal(s).astype(np.float32) for s in ((rank, wide), (high, rank))]
        sent = [[rng.standard_normal(s).astype(np.float32) for s in ((r, wide), (high, r))] for r in ranks[name]]
        parts[name] = (whole, sent)

    def combined(chosen):
        names = [f"{name}.lora_{letter}" for name in chosen for letter in "AB"]
        whole = [a for name in chosen for a in parts[name][0]]
        letters = [Sent(str(i), [a for name in chosen for a in parts[name][1][i]]) for i in range(3)]
        stops = np.cumsum([0, *(a.size for a in whole)]).tolist()
        folded = Adapters().fold(1, letters, names, whole, list(pairwise(stops)), {})
        made, _ = folded.unfold(folded.cohort.updates.weighted_sum(np.array([0.5, 0.2, 0.3])))
        return folded.cohort.updates.inner_products(), made

    gram, made = combined(shapes)
    alone = [combined([name]) for name in shapes]
    np.testing.assert_allclose(gram, sum(g for g, _ in alone), rtol=1e-9)
    for k, (_, (a, b)) in enumerate(alone):
        np.testing.assert_allclose(made[2 * k + 1] @ made[2 * k], b @ a, rtol=1e-4, atol=1e-4)


def test_directions_that_are_not_learned_yet_stay_open(rng):
    whole = model(rng)
    whole[1][:] = 0
    only = np.zeros_like(whole[1])
    only[:, 0] = 1
    folded = fold(Adapters(), [Sent(str(i), [whole[0], only, whole[2]]) for i in range(3)], whole)
    made, _ = folded.unfold(folded.cohort.updates.weighted_sum(np.full(3, 1 / 3)))
    np.testing.assert_allclose(product(made), product([whole[0], only]), atol=1e-5)
    assert (np.linalg.norm(made[0], axis=1) > 1).all()


def test_the_scale_is_alpha_over_the_rank_with_a_table_of_clients(rng):
    whole = model(rng)
    adapters = Adapters(alpha=16, alphas={"b": 4})
    start = adapters.brought(NAMES, whole, [4], "b")
    np.testing.assert_allclose(product(start, 4 / 4), cut_to(product(whole, 16 / RANK), 4), atol=1e-5)


@pytest.mark.parametrize(
    ("shapes", "says"),
    [
        ({NAMES[0]: (0, D_IN)}, "has rank 0; expected 1 to 30"),
        ({NAMES[0]: (31, D_IN)}, "has rank 31; expected 1 to 30"),
    ],
)
def test_a_rank_that_no_layer_has_is_refused(shapes, says):
    class Place:
        def __init__(self, name, shape):
            self.name, self.shape = name, shape

        def shaped(self, shape):
            return Place(self.name, shape)

    places = [Place(n, s) for n, s in zip(NAMES, ((RANK, D_IN), (D_OUT, RANK), (5,)), strict=True)]
    with pytest.raises(Unfit, match="has rank 7; expected 1 to 6"):
        Adapters(max_rank=6).ranked(places, {NAMES[0]: (7, D_IN)})
    narrow = [Place(n, s) for n, s in zip(NAMES, ((2, D_IN), (D_OUT, 2), (5,)), strict=True)]
    with pytest.raises(Unfit, match="has rank 9; expected 1 to 8"):
        Adapters().ranked(narrow, {NAMES[0]: (9, D_IN)})
    with pytest.raises(Unfit, match=says):
        Adapters().ranked(places, shapes)
    fitted = Adapters().ranked(places, {NAMES[0]: (3, D_IN)})
    assert [p.shape for p in fitted] == [(3, D_IN), (D_OUT, 3), (5,)]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("lorra", "did you mean 'lora'"),
        ({"kind": "lora", "ranks": 4}, "did you mean 'rank'"),
        ({"rank": 0}, "rank is a whole number of at least 1; got 0"),
        ({"alphas": {"a": -1}}, "alphas.a is a number above 0; got -1"),
    ],
)
def test_a_wrong_table_is_refused(spec, says):
    with pytest.raises(ConfigError, match=says):
        Adapters.of(spec)


def test_a_model_without_pairs_and_a_factor_without_its_partner_are_refused():
    with pytest.raises(ConfigError, match="no pair of lora factors"):
        Adapters().pairs(["fc.weight"])
    with pytest.raises(ConfigError, match=r"'q.lora_B' is a factor of lora without its partner"):
        Adapters().pairs(["v.lora_A", "v.lora_B", "q.lora_B"])


def test_what_needs_single_weights_is_left_out_or_refused():
    assert "lone weights" not in [w.name for w in fw.Warden.preset("auto").of_products().watches]
    for options in ({"aggregator": "foolsgold"}, {"aggregator": {"name": "arc", "then": "centered_clipping"}}):
        with pytest.raises(ConfigError, match="carries vectors"):
            fw.Warden.preset("auto", **options).of_products()


def test_convolutions_have_products_too(rng):
    shapes = ((4, 6, 3, 3), (10, 4, 1, 1))
    whole = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    sent = [[(a + 0.1 * rng.standard_normal(a.shape)).astype(np.float32) for a in whole] for _ in range(3)]
    names = ("c.lora_A", "c.lora_B")
    folded = Adapters().fold(1, [Sent(str(i), x) for i, x in enumerate(sent)], names, whole, [(0, 216), (216, 256)], {})

    def kernel(layers):
        return np.einsum("or,rikl->oikl", layers[1][:, :, 0, 0].astype(float), layers[0])

    updates = [kernel(x) - kernel(whole) for x in sent]
    dense = [[np.sum(a * b) for a in updates] for b in updates]
    np.testing.assert_allclose(folded.cohort.updates.inner_products(), dense, rtol=1e-6, atol=1e-6 * np.max(dense))
    made, _ = folded.unfold(folded.cohort.updates.weighted_sum(np.full(3, 1 / 3)))
    assert [a.shape for a in made] == list(shapes)


def test_a_pair_that_stays_at_the_clients_is_no_part_of_an_update(rng):
    """One client has another scale, and the server's factors, as all have: the pair neither moves nor is measured."""
    whole = [*model(rng)[:2], *model(rng)]
    names = ("own.lora_A", "own.lora_B", *NAMES)
    first = RANK * (D_IN + D_OUT)
    measured = [(a + first, b + first) for a, b in MEASURED]
    letters = [Sent(c, [*whole[:2], *trained(rng, whole[2:])]) for c in "abc"]
    adapters = Adapters(alphas={"a": 64})
    folded = adapters.fold(1, letters, names, whole, measured, {})
    alone = adapters.fold(1, [Sent(x.client_id, x.layers[2:]) for x in letters], NAMES, whole[2:], MEASURED, {})
    np.testing.assert_allclose(folded.cohort.updates.lengths(), alone.cohort.updates.lengths())
    made, _ = folded.unfold(folded.cohort.updates.weighted_sum(np.full(3, 1 / 3)))
    assert (made[0] == whole[0]).all()
    assert (made[1] == whole[1]).all()
    assert (made[2] != whole[2]).any()


def test_one_factor_cannot_stay_without_the_other():
    with pytest.raises(ConfigError, match=r"'layer.lora_B.weight' stays at the clients and its partner .*lora_A"):
        Adapters().shared(NAMES, {NAMES[1]})
