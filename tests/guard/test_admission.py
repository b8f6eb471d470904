"""Every reply is let in, clipped or rejected, and never without a reason."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fedwarden as fw
from fedwarden.core.errors import FedwardenError
from fedwarden.flower.names import Names
from fedwarden.guard.admission import Reply, admit
from fedwarden.guard.arrays import Unfit
from fedwarden.guard.limits import Admission, clip_counts

PARAMS = [torch.full((2, 3), 0.5), torch.zeros(4), torch.tensor(7)]  # two layers and a counter


def layers(value=1.0):
    return [np.full((2, 3), value, np.float32), np.full(4, value, np.float32), np.array(9)]


def changed(i, layer):
    out = layers()
    out[i] = layer
    return out


def poked(value):
    return changed(1, np.array([0.0, value, 0.0, 0.0], np.float32))


GOOD = [Reply(c, layers(v), 10) for c, v in (("a", 1.0), ("b", 2.0), ("c", 3.0))]
FAULTS = {
    "nan": (poked(np.nan), "NaN, Inf"),
    "inf": (poked(np.inf), "NaN, Inf"),
    "too large to square": (poked(1e30), "too large"),
    "transposed": (changed(0, np.ones((3, 2), np.float32)), r"layer 0 has shape \(3, 2\); expected \(2, 3\)"),
    "would broadcast": (changed(1, np.ones(1, np.float32)), r"layer 1 has shape \(1,\); expected \(4,\)"),
    "none layer": (changed(1, None), r"layer 1 has shape \(\)"),
    "integers for floats": (changed(1, np.ones(4, np.int64)), "layer 1 has dtype int64; expected torch.float32"),
    "floats for a counter": (changed(2, np.array(9.0)), "layer 2 has dtype float64; expected torch.int64"),
    "complex": (changed(1, np.ones(4, complex)), "layer 1 has dtype complex128"),
    "strings": (changed(1, np.array(["1", "2", "3", "4"])), "layer 1 has dtype <U1"),
    "objects": (changed(1, np.array([1.0, None, 2.0, 3.0], object)), "layer 1 has dtype object"),
    "ragged": (changed(1, [[1.0], [1.0, 2.0], [], [3.0]]), "cannot be read as arrays"),
    "one layer too few": (layers()[:-1], "sent 2 layers; expected 3"),
    "no layers": ([], "sent 0 layers; expected 3"),
    "one flat array": (np.ones(11, np.float32), "sent 1 layers; expected 3"),
    "nothing": (None, "cannot be read as arrays"),
    "a number": (5, "cannot be read as arrays"),
    "text": ("abc", r"layer 0 has shape \(\)"),
}
COUNTS = {
    "zero": (0, "claims 0 examples; expected a positive number"),
    "negative": (-5, "claims -5 examples"),
    "nan": (float("nan"), "claims nan examples"),
    "inf": (float("inf"), "claims inf examples"),
    "text": ("many", "expected a positive number"),
    "beyond floats": (10**400, "expected a positive number"),
    "tensor without numbers": (torch.empty((), device="meta"), "expected a positive number"),
}


def receive(*replies, warden=None, round=1):
    return (warden or fw.Warden()).receive([*GOOD, *replies], PARAMS, round)


def reasons(outcome):
    return {r.client_id: str(r.reason) for r in outcome.record.rejected}


def weights(outcome):
    return dict(zip(outcome.record.client_ids, outcome.weights.tolist(), strict=True))


def check_without(outcome, client="x"):
    """The good replies alone make the update."""
    assert weights(outcome).get(client, 0.0) == 0.0
    assert [weights(outcome)[c] for c in "abc"] == pytest.approx([1 / 3] * 3)
    want = np.concatenate([np.full(6, 1.5), np.full(4, 2.0), [2.0]])  # the mean of 1, 2, 3 less the model; 9 - 7
    np.testing.assert_allclose(outcome.update, want, rtol=1e-6)


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_of_the_layers_is_rejected_with_its_reason(fault):
    sent, reason = FAULTS[fault]
    outcome = receive(Reply("x", sent, 10))
    assert list(reasons(outcome)) == ["x"]
    assert re.search(reason, reasons(outcome)["x"])
    check_without(outcome)


@pytest.mark.parametrize("fault", COUNTS)
def test_every_fault_of_the_count_is_rejected_with_its_reason(fault):
    count, reason = COUNTS[fault]
    outcome = receive(Reply("x", layers(100.0), count))
    assert reason in reasons(outcome)["x"]
    check_without(outcome)


def test_a_huge_count_is_clipped_and_said():
    outcome = receive(Reply("x", layers(2.0), 1e9))
    assert reasons(outcome) == {}
    assert weights(outcome)["x"] == pytest.approx(1 / 4)  # the median of 10, 10, 10, 1e9
    assert any("client x: claims 1e+09 examples, counted as 10" in str(note) for note in outcome.record.notes)


def test_the_first_of_two_replies_counts():
    outcome = receive(Reply("a", layers(1e6), 10))
    assert "answered more than once" in reasons(outcome)["a"]
    np.testing.assert_allclose(outcome.weights, [1 / 3, 1 / 3, 1 / 3, 0])
    assert outcome.update.abs().max() < 10


def test_a_second_reply_does_not_count_where_the_first_one_was_rejected():
    outcome = receive(Reply("x", [], 10), Reply("x", layers(1e6), 10))
    assert "x" not in outcome.record.client_ids
    assert [r.reason.kind for r in outcome.record.rejected] == ["layer_count", "answered_twice"]


@pytest.mark.parametrize("name", ["", "x" * 10_000_000])
def test_a_name_of_no_or_too_many_characters_is_rejected_and_is_nowhere_in_the_record(name):
    """At each door: raw replies, a cohort, nodes and sites of one's own naming, data."""
    replies = [*GOOD, Reply(name, layers(), 10)]
    by_reply = fw.Warden.preset("auto").receive(replies, PARAMS, 1).record
    cohort = fw.Cohort(1, ("a", "b", name), fw.Updates.of(np.ones((3, 2))), np.ones(3), reported={"m": {name: 1.0}})
    for record in (by_reply, fw.Warden.preset("auto").step(cohort).record):
        assert [str(r.reason) for r in record.rejected] == [f"its name has {len(name)} characters; expected 1 to 200"]
        assert name not in record.client_ids
        assert len(repr(record)) < 100_000
    assert Names(lambda node: name)(7) == "7"
    with pytest.raises(FedwardenError) as caught:
        fw.simulate({name: (np.ones((4, 2)), np.zeros(4)), "b": (np.ones((4, 2)), np.ones(4))}, rounds=1)
    assert len(str(caught.value)) < 200
    inbox = pytest.importorskip("fedwarden.nvflare.inbox")
    with pytest.raises(Unfit, match="expected 1 to 200") if name else nullcontext():
        assert inbox.site_of(SimpleNamespace(meta={"client_name": name})) == inbox.UNKNOWN


def test_only_known_clients_may_answer():
    warden = fw.Warden(admission=Admission(known=frozenset("abc")))
    outcome = receive(Reply("x", layers(), 10), warden=warden)
    assert reasons(outcome) == {"x": "unknown client; 3 clients are known"}
    check_without(outcome)


@pytest.mark.parametrize(
    "sent",
    [
        changed(1, torch.ones(4, dtype=torch.float64)),
        changed(1, np.ones(4, np.float16)),
        changed(1, [1.0, 1.0, 1.0, 1.0]),
        changed(1, torch.ones(4, requires_grad=True)),
        changed(1, np.ones(8, np.float32)[::2]),
        changed(2, np.array(9, np.uint8)),
        changed(2, 9),
        tuple(layers()),
    ],
    ids=["float64", "float16", "list", "with gradient", "strided", "uint8", "python number", "tuple"],
)
def test_what_has_the_right_shapes_and_kinds_is_let_in(sent):
    outcome = receive(Reply("x", sent, 10))
    assert reasons(outcome) == {}
    np.testing.assert_allclose(outcome.weights, 0.25)
    assert outcome.update[-1] == pytest.approx(2.0)


ODD = {
    "negative strides": lambda: changed(1, np.ones(4, np.float32)[::-1]),
    "other byte order": lambda: changed(1, np.ones(4, ">f4")),
    "long double": lambda: changed(1, np.ones(4, np.longdouble)),
    "sparse tensor": lambda: changed(1, torch.ones(4).to_sparse()),
    "generator": lambda: (layer for layer in layers()),
    "tensor without numbers": lambda: changed(1, torch.empty(4, device="meta")),
    "nested tensor": lambda: changed(0, torch.nested.nested_tensor([torch.ones(3), torch.ones(3)])),
    "jagged tensor": lambda: changed(0, torch.nested.nested_tensor([torch.ones(3)] * 2, layout=torch.jagged)),
    "object that answers in its own way": lambda: changed(1, Odd()),
}


class Odd:
    """Something that cannot be read as an array, and says so in its own way."""

    def __array__(self, *_, **__):
        raise RuntimeError("no")


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ODD)
def test_an_odd_container_is_let_in_or_rejected_but_stops_no_round(kind):
    outcome = receive(Reply("x", ODD[kind](), 10))
    assert ("x" in reasons(outcome)) != (weights(outcome).get("x", 0.0) > 0)
    assert torch.isfinite(outcome.update).all()


def test_a_number_as_first_layer_does_not_make_the_client_one_flat_array():
    params = [torch.tensor(7), torch.zeros(4)]
    replies = [Reply(c, [np.array(9), np.ones(4, np.float32)], 10) for c in "ab"]
    outcome = fw.Warden().receive([*replies, Reply("x", [9, np.ones(4, np.float32)], 10)], params, 1)
    assert torch.isfinite(outcome.update).all()
    assert outcome.update.tolist() == pytest.approx([2.0, 1.0, 1.0, 1.0, 1.0])


@st.composite
def malformed(draw):
    """A reply that must not get in."""
    part = draw(st.sampled_from(["value", "shape", "dtype", "number", "junk", "count", "twice", "stranger"]))
    sent, i = layers(), draw(st.integers(0, 1))
    client, count = "x", draw(st.floats(1e-300, 1e300))
    if part == "value":
        at = draw(st.integers(0, sent[i].size - 1))
        sent[i].reshape(-1)[at] = draw(st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -1e20]))
    elif part == "shape":
        shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)
        sent[i] = np.ones(draw(shapes.filter(lambda shape: shape != sent[i].shape)), np.float32)
    elif part == "dtype":
        wrong = draw(st.sampled_from(["c8", "c16", "U0", "U3", "S2", "O", "M8[s]", "m8[D]", "V4", "other kind"]))
        i = draw(st.integers(0, 2))
        kind = draw(st.sampled_from(["f2", "f4", "f8"] if i == 2 else ["i1", "i8", "u1", "u4", "?"]))
        sent[i] = np.zeros(sent[i].shape, kind if wrong == "other kind" else wrong)
    elif part == "number":
        sent = (sent * 2)[: draw(st.sampled_from([0, 1, 2, 4, 5, 6]))]
    elif part == "junk":
        junk = st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5) | st.booleans()
        sent = draw(junk | st.lists(junk, max_size=4) | st.dictionaries(st.text(max_size=3), junk, max_size=4))
    elif part == "count":
        count = draw(st.sampled_from([0, -1, -1e300, float("nan"), float("inf"), "ten", None, [], {}, 1j, b"x"]))
    elif part == "twice":
        client = draw(st.sampled_from("abc"))
    else:
        client = draw(st.text(max_size=4).filter(lambda c: c not in "abcx" or not c))
    return Reply(client, sent, count)


@settings(max_examples=200)
@given(malformed(), st.sampled_from(["none", "pid_made", "auto"]), st.integers(0, 3))
def test_a_malformed_reply_among_good_ones_changes_nothing(bad, preset, at):
    warden = fw.Warden.preset(preset)
    warden.admission = Admission(known=frozenset("abcx"))
    at = 3 if bad.client_id in ("a", "b", "c") else at  # of two replies the first counts
    for t in (1, 2, 3):
        outcome = warden.receive([*GOOD[:at], bad, *GOOD[at:]], PARAMS, t)
        assert [r.client_id for r in outcome.record.rejected] == [bad.client_id]
        assert outcome.record.rejected[0].reason
        assert outcome.weights.sum() == pytest.approx(1.0)
        used = [c for c, w in zip(outcome.record.client_ids, outcome.weights, strict=True) if w > 0]
        assert used == ["a", "b", "c"]
        assert torch.isfinite(outcome.update).all()


def test_what_is_let_in_fits_the_dtype_of_the_model():
    """In float64 a row of 1e100 has a finite norm, but the float32 model would become infinite."""
    outcome = receive(Reply("x", changed(1, np.full(4, 1e100)), 10))
    assert torch.isfinite(outcome.update.to(PARAMS[1].dtype)).all()


def test_a_round_in_which_all_are_rejected_keeps_the_model():
    warden = fw.Warden.preset("auto")
    before = warden.state_dict()
    outcome = warden.receive([Reply("a", poked(np.nan), 10), Reply("b", None, 10), Reply("c", layers(), 0)], PARAMS, 1)
    assert outcome.update.tolist() == [0.0] * 11
    assert fw.Note.of("no_usable_reply", rejected=3) in outcome.record.notes
    assert sorted(reasons(outcome)) == ["a", "b", "c"]
    assert not outcome.weights.any()
    assert warden.state_dict() == before


def test_admit_makes_deltas_and_keeps_the_order():
    bad = Reply("x", [], 10)
    cohort, rejected = admit([GOOD[2], bad, GOOD[0]], PARAMS, 4, measured=[(0, 10)])
    assert (cohort.round, cohort.client_ids) == (4, ("c", "a"))
    assert cohort.params.tolist() == [0.5] * 6 + [0.0] * 4 + [7.0]
    np.testing.assert_allclose(cohort.updates.weighted_sum(np.array([0, 1])), [0.5] * 6 + [1.0] * 4 + [2.0])
    assert [s.measured for s in cohort.updates.segments] == [True, True, False]
    assert [r.client_id for r in rejected] == ["x"]


def test_one_flat_array_is_a_model_of_one_layer():
    cohort, rejected = admit([Reply("a", np.ones(4, np.float32), 3)], [torch.zeros(4)], 1)
    assert rejected == ()
    assert cohort.updates.d == 4


def clip(counts, ratio, share):
    n = len(counts)
    return clip_counts(counts, np.full(n, np.inf if ratio is None else ratio), np.full(n, share or 1.0))


counts = st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=12)


@given(counts, st.none() | st.floats(1, 100), st.none() | st.floats(0.01, 1))
def test_clipping_never_raises_a_count_and_keeps_ratio_and_share(claimed, ratio, share):
    c = np.array(claimed)
    out = clip(c, ratio, share)
    assert (out <= c * (1 + 1e-12)).all()
    assert (out > 0).all()
    assert (np.diff(out[np.argsort(c, kind="stable")]) >= -1e-12 * out.max()).all()  # who has more keeps no less
    if ratio is not None:
        assert out.max() <= ratio * np.median(c) * (1 + 1e-12)
    if share is not None:
        assert out.max() <= max(share, 1 / len(c)) * out.sum() * (1 + 1e-9)


@given(counts, st.lists(st.floats(0.05, 1), min_size=12, max_size=12))
def test_every_client_keeps_within_a_share_of_its_own(claimed, shares):
    c, s = np.array(claimed), np.array(shares)[: len(claimed)]
    out = clip_counts(c, np.full(len(c), np.inf), s)
    assert (out <= c * (1 + 1e-12)).all()
    if s.sum() >= 1:
        assert (out <= s * out.sum() * (1 + 1e-6)).all()
        cut = out < c * (1 - 1e-9)
        np.testing.assert_allclose(out[cut], (s * out.sum())[cut], rtol=1e-6)  # no more is taken than must be
    else:
        np.testing.assert_allclose(out / s, (out / s)[0])


def test_a_site_that_was_agreed_to_hold_half_of_the_data_is_believed():
    claims = np.array([1000.0, 100.0, 120.0, 80.0, 100.0])
    ids = ("big", "a", "b", "c", "d")
    shy, told = Admission().clip(ids, claims), Admission(shares={"big": 0.6}).clip(ids, claims)
    assert shy[0] / shy.sum() == pytest.approx(100 / 480)
    assert told[0] / told.sum() == pytest.approx(0.6)
    assert (told[1:] == shy[1:]).all()
    truly = Admission(shares={"big": 0.9}).clip(ids, claims)
    assert truly[0] == 1000  # no more than it says itself


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count_ratio": 0.5}, "count_ratio is at least 1, or none; got 0.5"),
        ({"count_ratio": float("nan")}, "count_ratio is at least 1"),
        ({"max_share": 0.0}, r"max_share: a share lies in \(0, 1\], or is none; got 0.0"),
        ({"max_share": 1.5}, "max_share: a share lies in"),
        ({"shares": {"big": 2.0}}, "big: a share lies in"),
        ({"buffers": "none"}, "buffers are the clients' 'median' or 'mean'; got 'none'"),
    ],
)
def test_limits_outside_of_their_range(options, message):
    with pytest.raises(ValueError, match=message):
        Admission(**options)


def test_what_is_counted_is_what_the_notes_say(cohort_of):
    """Two large counts leave with their broken rows; the third is then ten times above the median and is clipped."""
    rows = np.ones((5, 3))
    rows[2:4] = np.nan
    warden = fw.Warden(admission=Admission(count_ratio=10.0, max_share=None))
    outcome = warden.step(cohort_of(rows, counts=[1, 1, 100, 100, 30]))
    np.testing.assert_allclose(outcome.weights, np.array([1, 1, 0, 0, 10]) / 12)
    assert any("client e: claims 30 examples, counted as 10" in str(note) for note in outcome.record.notes)
