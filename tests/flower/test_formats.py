"""Replies of eight and of sixteen bits: int8 with scales, and bfloat16."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord
from flwr.serverapp import strategy as flower

from fedwarden import Scaled
from fedwarden.flower import Guarded
from fedwarden.flower.records import Template, view

from .nodes import BAD, BASES, NODES, LocalGrid, close, honest, model, play, state, training

WEIGHT = "fc.weight"


def quantised(arrays, by_row=False):
    """Arrays as int8 with their scales; what the model calls ``scale`` itself is one of them."""
    sent = {}
    for name, array in arrays.items():
        size = np.abs(array).max(axis=tuple(range(1, array.ndim))) if by_row and array.ndim else np.abs(array).max()
        scale = np.asarray(np.maximum(size, 1e-6) / 127, np.float32)
        wide = scale.reshape(-1, *[1] * (array.ndim - 1)) if by_row and array.ndim else scale
        sent |= {name: np.rint(array / wide).astype(np.int8), f"{name}.scale": scale}
    return sent


def moved(node):
    def arrays(message):
        rng, sent = np.random.default_rng(node), state(message.content["arrays"])
        return {k: np.asarray(v + 0.5 + 0.1 * rng.normal(size=v.shape), np.float32) for k, v in sent.items()}

    return arrays


def bfloat16(array, described=b"<V2"):
    """As JAX's arrays come, which NumPy saves without a name; ``<u2`` is how a tensor of torch can be sent."""
    made = Array(torch.from_numpy(np.atleast_1d(array)).bfloat16().view(torch.uint16).numpy().reshape(array.shape))
    return Array("bfloat16", made.shape, made.stype, made.data.replace(b"<u2", described))


FORMS = {
    "int8": quantised,
    "int8 by row": lambda arrays: quantised(arrays, by_row=True),
    "bfloat16": lambda arrays: {k: bfloat16(v) for k, v in arrays.items()},
    "bfloat16 of torch": lambda arrays: {k: bfloat16(v, b"<u2") for k, v in arrays.items()},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("base", ["FedAvg", "FedAdam", "FedMedian", "DP server fixed", "fedwarden's mean"])
def test_a_model_of_small_replies_is_that_of_full_ones(form, base):
    """To a part in a hundred, half of the step of 127 and of that of bfloat16's eight bits."""
    found = {}
    for narrow in (False, True):
        make = FORMS[form] if narrow else dict
        crowd = {n: training(lambda message, n=n, make=make: make(moved(n)(message))) for n in NODES}
        own = base == "fedwarden's mean"
        guarded = Guarded(flower.FedAvg() if own else BASES[base](), aggregator="mean" if own else None)
        _, result = play(guarded, crowd, rounds=1)
        found[narrow] = state(result.arrays)
        assert guarded.record.rejected == ()
    for name, want in found[False].items():
        assert found[True][name].dtype == want.dtype == np.float32
        np.testing.assert_allclose(found[True][name], want, atol=0.03)


def drawn(node):
    return np.random.default_rng(node).normal(size=(256, 256)).astype(np.float32)


def odd(change):
    return training(lambda message: change(quantised(moved(BAD)(message))))


ATTACKS = {
    "zero": (lambda a: {**a, f"{WEIGHT}.scale": np.float32(0)}, "has a scale of 0; expected finite numbers above 0"),
    "negative": (lambda a: {**a, f"{WEIGHT}.scale": np.float32(-1)}, "has a scale of -1"),
    "nan": (lambda a: {**a, f"{WEIGHT}.scale": np.float32(np.nan)}, "has a scale of nan"),
    "tiny in float64": (lambda a: {**a, f"{WEIGHT}.scale": np.float64(1e-300)}, "has a scale of 0"),
    "huge in float64": (lambda a: {**a, f"{WEIGHT}.scale": np.float64(1e300)}, "has a scale of inf"),
    "huge": (lambda a: {**a, f"{WEIGHT}.scale": np.float32(3e38)}, "too large for the model's float32"),
    "one of four zero": (lambda a: {**a, f"{WEIGHT}.scale": np.float32([1, 1, 0, 1])}, "has a scale of 0"),
    "three": (lambda a: {**a, f"{WEIGHT}.scale": np.ones(3, np.float32)}, "has 3 scales; expected one"),
    "a million": (lambda a: {**a, f"{WEIGHT}.scale": np.ones(10**6, np.float32)}, "has 1000000 scales"),
    "none": (lambda a: {**a, f"{WEIGHT}.scale": np.ones(0, np.float32)}, "has 0 scales"),
    "whole": (lambda a: {**a, f"{WEIGHT}.scale": np.int64(1)}, "has 1 scales; expected one floating-point number"),
    "text": (lambda a: {**a, f"{WEIGHT}.scale": np.array("x")}, "cannot be read as a NumPy array of real numbers"),
    "missing": (lambda a: {k: v for k, v in a.items() if k != f"{WEIGHT}.scale"}, "has dtype int8 and no scale"),
    "of floats": (lambda a: {**a, WEIGHT: np.ones((4, 3), np.float32)}, "has dtype float32 and a scale"),
    "of int16": (lambda a: {**a, WEIGHT: np.ones((4, 3), np.int16)}, "has dtype int16 and a scale; expected int8"),
    "another shape": (lambda a: {**a, WEIGHT: np.ones((3, 4), np.int8)}, "has shape (3, 4); expected (4, 3)"),
    "of nothing": (lambda a: {**a, "more.scale": np.float32(1)}, "sent an array 'more.scale' that the model does not"),
    "its array gone": (lambda a: {k: v for k, v in a.items() if k != WEIGHT}, "sent no array 'fc.weight'"),
    "a sign flip": (lambda a: {**a, WEIGHT: np.full((4, 3), -128, np.int8), f"{WEIGHT}.scale": np.float32(1e6)}, None),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_client_with_a_bad_scale_is_rejected_with_its_reason_and_the_round_goes_on(attack):
    change, reason = ATTACKS[attack]
    crowd = {n: training(lambda message, n=n: quantised(moved(n)(message))) for n in NODES}
    rest = {n: reply for n, reply in crowd.items() if n != BAD}
    want = play(Guarded(flower.FedAvg()), rest, rounds=1)[1].arrays
    guarded = Guarded(flower.FedAvg())
    _, result = play(guarded, crowd | {BAD: odd(change)}, rounds=1)
    close(result.arrays, want)
    (rejection,) = guarded.record.rejected
    assert rejection.client_id == str(BAD)
    assert (reason or "times as long as the median") in str(rejection.reason)


def test_two_bytes_of_no_name_are_no_numbers():
    array = bfloat16(np.ones((4, 3), np.float32))
    nameless = Array("void16", array.shape, array.stype, array.data)
    crowd = {n: honest(n) for n in NODES}
    crowd[BAD] = training(lambda message: {**moved(BAD)(message), WEIGHT: nameless})
    guarded = Guarded(flower.FedAvg())
    play(guarded, crowd, rounds=1)
    assert "cannot be read as a NumPy array of real numbers" in str(guarded.record.rejected[0].reason)


def test_bfloat16_is_the_first_half_of_float32():
    numbers = np.float32([0.0, -0.0, 1.0, -2.5, 3.0e38, 1e-40, np.inf, np.nan])
    np.testing.assert_array_equal(view(bfloat16(numbers)), torch.from_numpy(numbers).bfloat16().float().numpy())


def test_a_model_may_have_arrays_named_as_scales():
    """``norm.scale`` is a weight of the model beside ``norm``: whole numbers in ``norm`` have no scale."""
    arrays = {"norm": np.ones(4, np.float32), "norm.scale": np.ones((), np.float32)}
    template = Template.of(ArrayRecord({k: Array(v) for k, v in arrays.items()}))
    sent = ArrayRecord({"norm": Array(np.ones(4, np.int8)), "norm.scale": Array(np.asarray(2.0))})
    with pytest.raises(ValueError, match="has dtype int8 and no scale"):
        template.read(sent)


def test_what_asks_for_whole_arrays_gets_the_numbers():
    template = Template.of(model())
    sent = ArrayRecord({k: Array(np.asarray(v)) for k, v in quantised(state(model()), by_row=True).items()})
    _, converted, layers = template.read(sent)
    assert all(isinstance(layer, Scaled) for layer in layers)
    assert converted == {("int8", "float32"): 3}
    settled = state(template.settle(sent)[0])
    for name, want in state(model()).items():
        np.testing.assert_allclose(settled[name], want, atol=0.01)


def test_a_grid_of_int8_moves_a_quarter_of_the_bytes():
    wide = ArrayRecord({"w": Array(np.zeros((256, 256), np.float32))})
    sizes = []
    for make in (dict, quantised):
        crowd = {n: training(lambda m, n=n, make=make: make({"w": drawn(n)})) for n in NODES}
        guarded = Guarded(flower.FedAvg())
        guarded.start(LocalGrid(crowd), wide, num_rounds=1)
        sizes.append(guarded.record.reported["reply/bytes"][str(BAD)])
    assert sizes[1] == pytest.approx(sizes[0] / 4, rel=0.01)


def test_a_variance_of_int8_is_looked_at_where_buffers_are_measured():
    start = ArrayRecord({"w": Array(np.ones((4, 3), np.float32)), "bn.running_var": Array(np.ones(4, np.float32))})

    def node(number):
        def arrays(message):
            rng = np.random.default_rng(number)
            sent = {k: np.float32(v + rng.random(v.shape)) for k, v in state(message.content["arrays"]).items()}
            bad = {"bn.running_var": np.full(4, -100, np.int8), "bn.running_var.scale": np.float32([0.5])}
            return sent | bad if number == BAD else sent

        return training(arrays)

    guarded = Guarded(flower.FedAvg(), buffers=())
    play(guarded, {n: node(n) for n in NODES}, rounds=1, arrays=start)
    (rejection,) = guarded.record.rejected
    assert "negative variance (-50)" in str(rejection.reason)
