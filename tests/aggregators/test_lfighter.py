"""LFighter: its clusters beside scikit-learn's, flipped labels of a small model, and where the output layer lies."""

import numpy as np
import pytest
from sklearn.cluster import KMeans
from torch import nn

import fedwarden as fw
from fedwarden.core.errors import ConfigError
from fedwarden_research.aggregators.lfighter import (
    LFighter,
    dissimilarity,
    lfighter,
    output_layer,
    relevant_neurons,
    two_means,
)

CLASSES, FEATURES, ATTACKERS = 4, 6, 3


def squares(x):
    return ((x[:, None] - x) ** 2).sum(axis=2)


@pytest.fixture(scope="module")
def flipped():
    """What ten clients add to a trained softmax regression; the first three call class 2 class 0."""
    rng = np.random.default_rng(0)
    centres = rng.normal(0.0, 2.0, size=(CLASSES, FEATURES))
    labels = rng.integers(CLASSES, size=(10, 120))
    x = centres[labels] + rng.normal(size=(10, 120, FEATURES))
    weight, bias = np.zeros((CLASSES, FEATURES)), np.zeros(CLASSES)

    def gradient(x, y):
        logits = x @ weight.T + bias
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = np.eye(CLASSES)[y] - p / p.sum(axis=1, keepdims=True)
        return error.T @ x / len(x), error.mean(axis=0)

    for _ in range(300):
        dw, db = gradient(x.reshape(-1, FEATURES), labels.reshape(-1))
        weight, bias = weight + 0.3 * dw, bias + 0.3 * db
    sent = []
    for i, (own, y) in enumerate(zip(x, labels, strict=True)):
        dw, db = gradient(own, np.where((y == 2) & (i < ATTACKERS), 0, y))
        sent.append([rng.normal(size=5), dw, db])
    return sent


def flat(sent):
    return np.array([np.concatenate([layer.reshape(-1) for layer in client]) for client in sent])


def test_who_flips_labels_is_left_out(flipped):
    weight, bias = np.array([w for _, w, _ in flipped]), np.array([b for _, _, b in flipped])
    assert relevant_neurons(weight, bias) == [0, 2]
    assert lfighter(weight, bias).tolist() == [False] * ATTACKERS + [True] * 7


def test_neurons_by_hand():
    """Two clients: 5 + 1 and 0, 0 and 3, 2 and 2 with a bias of -4 make 6, 3 and 8."""
    weight = np.array([[[3.0, 4.0], [0.0, 0.0], [0.0, 2.0]], [[0.0, 0.0], [0.0, 3.0], [2.0, 0.0]]])
    bias = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, -4.0]])
    assert relevant_neurons(weight, bias) == [0, 2]
    assert relevant_neurons(weight[:, :1], bias[:, :1]) == [0]


@pytest.mark.parametrize("n", [3, 10, 60])
def test_clusters_are_those_of_scikit_learn(n):
    for seed in range(15):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(n, 8)) + 4 * rng.normal(size=8) * (np.arange(n) < 0.4 * n)[:, None]
        found, theirs = two_means(squares(x)), KMeans(2, n_init=10, random_state=seed).fit(x)
        assert found.tolist() in [(theirs.labels_ == 0).tolist(), (theirs.labels_ == 1).tolist()]


def test_equal_rows_are_one_cluster_and_everybody_stays():
    assert not two_means(np.zeros((4, 4))).any()
    assert lfighter(np.ones((4, 3, 2)), np.zeros((4, 3))).all()


def test_dissimilarity_by_hand():
    """The lowest cosines are -0.5, 0.2 and -0.5: 1 + 0.8 / 3."""
    similarity = np.array([[1.0, 0.2, -0.5], [0.2, 1.0, 0.9], [-0.5, 0.9, 1.0]])
    assert dissimilarity(similarity) == pytest.approx(1 + 0.8 / 3)
    assert dissimilarity(np.ones((1, 1))) == 0.0


def turned(degrees):
    return np.stack([np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))], axis=1)[:, None]


@pytest.mark.parametrize(
    ("degrees", "kept"),
    [
        ([0, 20, 40, 180, 182], [True] * 3 + [False] * 2),  # fewer and denser
        ([0, 60, 178, 180, 182], [True] * 2 + [False] * 3),  # more but much denser: 2/5 (1 - cos 60) against 3/5 (...)
        ([0, 20, 40, 180, 220], [True] * 3 + [False] * 2),  # the same width: the larger
    ],
)
def test_the_larger_and_less_dense_cluster_is_kept(degrees, kept):
    assert lfighter(turned(degrees), np.zeros((5, 1))).tolist() == kept


def test_clients_without_a_move_are_alike():
    """Two zeros are one cluster of the same direction, not of the most different ones."""
    weight = np.concatenate([np.zeros((2, 1, 2)), 5 * turned([0, 30, 60])])
    assert lfighter(weight, np.zeros((5, 1))).tolist() == [False] * 2 + [True] * 3


@pytest.mark.parametrize("weighted", [True, False])
def test_the_mean_of_the_kept_with_weights_and_counts(flipped, weighted, cohort_of):
    counts, weights = np.arange(1.0, 11.0), np.append(np.ones(8), [0.5, 0.0])
    result = LFighter(CLASSES, FEATURES, weighted).step({}, cohort_of(flat(flipped), counts=counts), weights)[1]
    shares = weights * (counts if weighted else 1.0) * (np.arange(10) >= ATTACKERS)
    np.testing.assert_allclose(result.weights, shares / shares.sum(), atol=1e-12)
    np.testing.assert_allclose(result.update, shares @ flat(flipped) / shares.sum(), atol=1e-12)


def test_layers_a_model_and_options_find_the_same_output_layer(flipped, cohort_of):
    model = nn.Sequential(nn.Linear(4, 1), nn.Linear(FEATURES, CLASSES))
    by_option = fw.aggregate("lfighter", flat(flipped), classes=CLASSES, features=FEATURES).weights
    by_layers = fw.aggregate("lfighter", flipped).weights
    warden = fw.Warden(aggregator="lfighter").equip(fw.Server(model))
    assert warden.aggregator == LFighter(CLASSES, FEATURES)
    by_model = warden.aggregator.step({}, cohort_of(flat(flipped)), np.ones(10))[1].weights
    assert (
        by_option.tolist() == by_layers.tolist() == by_model.tolist() == [0.0] * ATTACKERS + [pytest.approx(1 / 7)] * 7
    )


def test_the_output_layer_is_the_last_that_is_measured():
    x = np.arange(30.0).reshape(2, 15)
    updates = fw.Updates.of(x, measured=[(0, 5), (6, 8), (9, 13)])
    weight, bias = output_layer(updates, classes=2, features=3)
    assert weight[0].tolist() == [[3.0, 4.0, 6.0], [7.0, 9.0, 10.0]]
    assert bias[1].tolist() == [26.0, 27.0]


def test_options_of_ones_own_go_before_the_servers_model():
    model = nn.Linear(7, 2)
    assert LFighter(5, 3).equip(fw.Server(model)) == LFighter(5, 3)
    assert LFighter().equip(fw.Server(model)) == LFighter(2, 7)
    assert LFighter().equip(fw.Server(nn.Conv2d(3, 4, 2))) == LFighter(4, 12)
    assert LFighter().equip(fw.Server()) == LFighter()


@pytest.mark.parametrize(
    ("model", "ends"),
    [
        (nn.Linear(3, 2, bias=False), r"ends with \(2, 3\)"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), r"ends with \(2,\) and \(2,\)"),
        (nn.ReLU(), "ends with none"),
    ],
)
def test_a_model_without_an_output_layer_at_its_end(model, ends):
    with pytest.raises(
        ConfigError, match=f"last two parameters are the weight .* of its output layer; this one {ends}"
    ):
        fw.Warden(aggregator="lfighter").equip(fw.Server(model))


def test_what_it_refuses(flipped):
    with pytest.raises(
        ConfigError, match=r"as the last two layers of an update; the last have 33 entries: give classes"
    ):
        fw.aggregate("lfighter", flat(flipped))
    with pytest.raises(ConfigError, match="the last have 24 and 5 entries"):
        fw.aggregate("lfighter", [[client[1], client[0]] for client in flipped])
    with pytest.raises(ValueError, match="got classes=5, features=6, d=33"):
        fw.aggregate("lfighter", flat(flipped), classes=5, features=6)
    with pytest.raises(ValueError, match="got classes=0, features=6, d=33"):
        fw.aggregate("lfighter", flat(flipped), classes=0, features=6)
    with pytest.raises(ValueError, match="classes and features go together; got 4 and None"):
        LFighter(classes=4)
    with pytest.raises(ValueError, match="lfighter needs n >= 3 clients; got n=2"):
        fw.aggregate("lfighter", flipped[:2])
