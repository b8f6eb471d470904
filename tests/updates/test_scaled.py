"""Layers of int8 with their scales: the numbers that they stand for, in every fold, and never a whole layer of them."""

import numpy as np
import pytest
import torch

import fedwarden as fw
from fedwarden import Scaled, Updates
from fedwarden.updates import plain


def quantised(layer, by_row):
    """A layer as int8 with its scale, and what it then stands for."""
    size = np.abs(layer).reshape(len(layer), -1).max(axis=1) if by_row else np.abs(layer).max()
    scale = np.asarray(size / 127, np.float32)
    wide = scale.reshape(-1, *[1] * (layer.ndim - 1)) if by_row else scale
    q = np.rint(layer / wide).astype(np.int8)
    return (q, scale), q.astype(np.float64) * wide


def clients(by_row=True, n=6, shapes=((40, 30, 3), (64,), (7, 700)), seed=0):
    rng = np.random.default_rng(seed)
    sent, dense = [], []
    for _ in range(n):
        made = [quantised(rng.normal(size=shape).astype(np.float32), by_row and len(shape) > 1) for shape in shapes]
        sent.append([Scaled(*pair) for pair, _ in made])
        dense.append(np.concatenate([numbers.reshape(-1) for _, numbers in made]))
    return sent, np.array(dense)


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("based", [False, True])
@pytest.mark.parametrize("size", [1, 50])
def test_every_fold_gives_what_the_dense_rows_give(by_row, based, size):
    """Small updates go through plain torch, large ones through compiled kernels."""
    sent, x = clients(by_row, shapes=((40, 30 * size, 3), (64,), (7, 70)))
    base = torch.from_numpy(np.random.default_rng(9).normal(size=x.shape[1]).astype(np.float32)) if based else None
    x = x if base is None else x - base.double().numpy()
    rows, w = Updates.of(sent, base), np.linspace(0.1, 0.3, len(x))
    np.testing.assert_allclose(rows.weighted_sum(w), w @ x, atol=1e-4)
    np.testing.assert_allclose(rows.survey().sq_distances, ((x - x.mean(0)) ** 2).sum(1), rtol=1e-4)
    np.testing.assert_allclose(rows.inner_products(), x @ x.T, atol=1e-3 * np.abs(x @ x.T).max())
    np.testing.assert_allclose(rows.ranked_mean(2, 4), np.sort(x, axis=0)[2:4].mean(0), atol=1e-5)
    columns = np.array([0, 5, 3599, x.shape[1] - 1])
    np.testing.assert_allclose(rows.sample(columns), x[:, columns], atol=1e-5)
    np.testing.assert_allclose(rows.select([4, 1]).lengths(), np.linalg.norm(x[[4, 1]], axis=1), rtol=1e-5)


def test_measured_ranges_may_cut_through_a_layer():
    sent, x = clients(shapes=((6, 10),))
    rows = Updates.of(sent, measured=[(7, 33)])
    np.testing.assert_allclose(rows.lengths(), np.linalg.norm(x[:, 7:33], axis=1), rtol=1e-5)
    np.testing.assert_allclose(rows.weighted_sum(np.ones(6)), x.sum(0), atol=1e-5)


def test_clients_of_int8_and_of_other_types_in_one_round():
    sent, x = clients(shapes=((8, 5),), n=3)
    dense = [*x[:2].reshape(2, 8, 5).astype(np.float32), torch.from_numpy(x[2].reshape(8, 5)).bfloat16()]
    rows = [[sent[0][0]], [sent[1][0]], [sent[2][0]], *([layer] for layer in dense)]
    np.testing.assert_allclose(fw.aggregate("mean", rows).update, x.mean(0), atol=0.01)
    np.testing.assert_allclose(fw.aggregate("median", rows[:5]).update, np.median([*x, *x[:2]], axis=0), atol=1e-6)


def test_no_block_is_larger_than_others_are(monkeypatch):
    """A layer of 6 million entries is read in pieces, each of which is turned into numbers by itself."""
    largest = []
    to = Scaled.to

    def watched(self, dtype):
        largest.append(len(self.values))
        return to(self, dtype)

    monkeypatch.setattr(Scaled, "to", watched)
    q = np.random.default_rng(0).integers(-127, 128, (3, 3000, 2000)).astype(np.int8)
    rows = Updates.of([[Scaled(one, np.full(3000, 0.01, np.float32))] for one in q])
    found = rows.survey().total
    np.testing.assert_allclose(found[:2000], q[:, 0].mean(0) * 0.01, atol=1e-6)
    assert max(largest) < 2_000_000


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, [0.1, 0.0], [0.1], [[0.1, 0.2, 0.3]], 1])
def test_a_scale_that_cannot_be_used_leaves_its_row_out(scale):
    sent, _ = clients(shapes=((2, 4),), n=5)
    good = np.asarray(scale, np.float32).shape == (1,)  # one scale, whatever its shape
    sent[3] = [Scaled(np.ones((2, 4), np.int8), np.asarray(scale, None if scale == 1 else np.float32))]
    assert (sent[3][0].fault is None) == good
    assert (fw.aggregate("mean", sent).weights[3] > 0) == good


def test_int8_without_a_scale_is_refused():
    rows = [[np.ones((2, 2), np.int8)] for _ in range(3)]
    with pytest.raises(ValueError, match="client 0 has a layer of int8 without a scale"):
        fw.aggregate("mean", rows)
    sent, _ = clients(shapes=((2, 4),), n=3)
    sent[1] = [np.ones((2, 4), np.int8)]
    with pytest.raises(ValueError, match="client 1 has a layer of int8 without a scale"):
        fw.aggregate("mean", sent)


def test_a_model_can_be_made_of_a_row():
    sent, x = clients(shapes=((2, 4), (3,)), n=2)
    np.testing.assert_allclose(torch.cat(Updates.of(sent).sent(1)), x[1], atol=1e-6)


def test_the_plain_reference_reads_them_too():
    sent, x = clients(shapes=((40, 30),))
    np.testing.assert_allclose(plain.weighted_sum(Updates.of(sent), np.ones(6)), x.sum(0), atol=1e-4)


def test_replies_of_a_loop_of_ones_own():
    params = [torch.zeros(2, 4)]
    good = [fw.Reply(name, [Scaled(np.full((2, 4), i + 1, np.int8), 0.5)], 10) for i, name in enumerate("abcd")]
    bad = [
        fw.Reply("zero", [Scaled(np.ones((2, 4), np.int8), 0.0)], 10),
        fw.Reply("wide", [Scaled(np.ones((2, 4), np.int16), 0.5)], 10),
        fw.Reply("long", [Scaled(np.ones((2, 4), np.int8), [0.1, 0.2, 0.3])], 10),
        fw.Reply("bare", [np.ones((2, 4), np.int8)], 10),
        fw.Reply("other", [Scaled(np.ones((4, 2), np.int8), 0.5)], 10),
    ]
    outcome = fw.Warden.preset("none").receive([*good, *bad], params, round=1)
    np.testing.assert_allclose(outcome.update, 1.25)
    told = {r.client_id: str(r.reason) for r in outcome.record.rejected}
    assert set(told) == {reply.client_id for reply in bad}
    assert told["zero"] == "array 'layer 0' has a scale of 0; expected finite numbers above 0"
    assert told["wide"] == "array 'layer 0' has dtype int16 and a scale; expected int8"
    assert told["long"].endswith("has 3 scales; expected one floating-point number, or one for each of 2 rows")
