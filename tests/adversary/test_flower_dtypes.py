"""One client cannot change the dtypes of a model, or make a variance of it negative."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower

from fedwarden.core.notes import Note
from fedwarden.flower import Guarded
from flower.conftest import quiet  # noqa: F401
from flower.nodes import BAD, BASES, NODES, crowd_with, honest, one_round, state, trained, training


def sending(node, change):
    """A node that is honest but for what a function makes of its arrays."""
    return training(lambda message: change(trained(message, node)))


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("base", BASES)
def test_the_model_keeps_its_dtype_whatever_the_first_reply_has(base, dtype):
    nodes = {node: sending(node, lambda a: {k: v.astype(dtype) for k, v in a.items()}) for node in NODES[:3]}
    guarded = Guarded(BASES[base]())
    arrays, _ = one_round(guarded, {**{node: honest(node) for node in NODES}, **nodes})
    assert {v.dtype.str for v in state(arrays).values()} == {"<f4"}
    (note,) = [n for n in guarded.record.notes if n.kind == "converted"]
    assert "for 3 arrays; the model has float32: converted" in str(note)
    assert all(str(node) in note.clients for node in NODES[:3])
    fair, _ = one_round(BASES[base](), {node: honest(node) for node in NODES})
    for name, value in state(fair).items():  # float16 has three digits
        np.testing.assert_allclose(state(arrays)[name], value, rtol=2e-3, atol=2e-3)


def test_a_number_too_large_for_the_models_dtype_is_a_rejection():
    guarded = Guarded(flower.FedAvg())
    one_round(guarded, crowd_with(sending(BAD, lambda a: {**a, "fc.bias": np.array([1.0, 2.0, 3.0, 1e39])})))
    (rejection,) = guarded.record.rejected
    assert str(rejection.reason) == "array 'fc.bias' holds 1e+39, too large for the model's float32"


COUNTED = {"w": np.zeros(5, np.float32), "seen": np.zeros(2, np.int32)}


def sized(node, **more):
    """A node whose model is five numbers of its own, and more."""
    w = np.asarray(0.1 * np.random.default_rng(node).normal(size=5), np.float32)
    return training(lambda message: {"w": w, **more})


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (np.array([7, 7], np.int64), None),
        (np.array([7, 7], np.uint8), None),
        (np.array([7, 7], ">i2"), None),
        (np.array([7.0, 7.0]), None),
        (np.array([7, 2**31]), "holds 2147483648; the model's int32 goes from -2147483648 to 2147483647"),
        (np.array([7, 2**64 - 1], np.uint64), "holds 18446744073709551615; the model's int32 goes from"),
        (np.array([7.0, 7.5]), "has dtype float64; expected an integer type"),
        (np.array([7.0, np.nan]), "has dtype float64; expected an integer type"),
        (np.array([7.0, 1e300]), "the model's int32 goes from -2147483648 to 2147483647"),
    ],
)
def test_integers_are_converted_where_they_fit(seen, reason):
    guarded, start = Guarded(flower.FedAvg()), ArrayRecord({k: Array(v) for k, v in COUNTED.items()})
    nodes = {node: sized(node, seen=seen if node == BAD else np.array([7, 7], np.int32)) for node in NODES}
    arrays, _ = one_round(guarded, nodes, start)
    assert arrays["seen"].numpy().tolist() == [7, 7]
    assert arrays["seen"].numpy().dtype == np.int32
    assert [reason in str(r.reason) for r in guarded.record.rejected] == ([True] if reason else [])


NORMED = {"w": np.zeros(5, np.float32), "bn.running_var": np.ones(3, np.float32)}


def normed(node, variance):
    return sized(node, **{"bn.running_var": np.float32(variance)})


def normed_model():
    return ArrayRecord({k: Array(v) for k, v in NORMED.items()})


def test_a_negative_variance_is_a_rejection():
    guarded = Guarded(flower.FedAvg())
    nodes = {node: normed(node, [1.0, 1.0, -20.0 if node == BAD else 1.0]) for node in NODES}
    arrays, _ = one_round(guarded, nodes, normed_model())
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert str(rejection.reason) == "array 'bn.running_var' has a negative variance (-20); expected at least 0"
    assert arrays["bn.running_var"].numpy().tolist() == [1.0, 1.0, 1.0]


class Extrapolating(flower.FedAvg):
    """Goes twice as far as the clients, as a large server learning rate does."""

    def configure_train(self, server_round, arrays, config, grid):
        self.start = state(arrays)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        moved = {k: 2 * v - self.start[k] for k, v in state(arrays).items()}
        return ArrayRecord({k: Array(v) for k, v in moved.items()}), metrics


def test_no_model_is_handed_out_with_a_negative_variance():
    """1 falls to 0.25, and twice as far is -0.5."""
    guarded = Guarded(Extrapolating())
    arrays, _ = one_round(guarded, {node: normed(node, [0.25, 1.0, 2.0]) for node in NODES}, normed_model())
    assert arrays["bn.running_var"].numpy().tolist() == [0.0, 1.0, 3.0]
    assert guarded.record.notes == (Note.of("variance_negative", array="bn.running_var", lowest=-0.5),)
