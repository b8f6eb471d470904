"""Weights that one client moves and the others do not: closed forms, a plain loop, and nobody framed by a minority."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import fedwarden as fw
from fedwarden.core.registry import make
from fedwarden.core.types import output_layer
from fedwarden.signals import alone
from fedwarden.signals.alone import Alone, lone_entries, relative, squared


def cohort(rows, t=1):
    names = tuple(f"c{i:02}" for i in range(len(rows)))
    return fw.Cohort(t, names, fw.Updates.of(np.asarray(rows, np.float32)), np.full(len(rows), 10.0))


def honest_rows(n, d, rng, spread=2.0):
    """Clients that agree on little, with entries of very different sizes and clients of different lengths."""
    scale = np.exp(spread * rng.normal(size=d))
    return scale * (0.3 * rng.normal(size=d) + rng.normal(size=(n, d))) * np.exp(rng.normal(size=(n, 1)))


def by_loop(rows, trusted, times):
    rows = np.array([row / max(np.sqrt((row**2).sum()), 1e-300) for row in rows])
    judges = [i for i in range(len(rows)) if trusted[i]]
    out = []
    for row in rows:
        total = 0.0
        for j, value in enumerate(row):
            ordered = sorted(abs(rows[i][j]) for i in judges)
            if abs(value) > times * ordered[len(judges) - len(judges) // 4 - 1]:
                total += value**2
        out.append(total)
    return np.array(out)


@given(st.integers(1, 12), st.integers(0, 1000))
def test_against_a_plain_loop(n, seed):
    rng = np.random.default_rng(seed)
    rows = honest_rows(n, 15, rng, spread=0.0) ** 5
    trusted = rng.random(n) < 0.8
    trusted[0] = True
    found = squared(lone_entries(relative(torch.from_numpy(rows)), trusted, 4.0))
    np.testing.assert_allclose(found, by_loop(rows, trusted, 4.0), atol=1e-12)


@pytest.mark.parametrize(("n", "f"), [(4, 1), (8, 2), (12, 3), (20, 5)])
def test_a_quarter_that_shares_a_trigger_is_seen_whatever_its_length(n, f):
    """Sine and cosine: a share sin^2 of the squared length lies where the others send nothing."""
    rng = np.random.default_rng(n)
    rows = np.hstack([rng.normal(size=(n, 400)), np.zeros((n, 40))])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    trigger = np.append(np.zeros(400), np.full(40, 40**-0.5))
    rows[:f] = np.cos(0.6) * rows[:f] + np.sin(0.6) * trigger
    for factor in (0.01, 1.0, 100.0):
        rows[0] *= factor
        found = make("signal", "alone")(cohort(rows)).values
        np.testing.assert_allclose(found, [np.sin(0.6) ** 2] * f + [0.0] * (n - f), atol=1e-5)


def minorities(rows, f, victim, rng):
    """What f others may send to make a victim look alone: little where it is large, and much where it is not."""
    row = rows[victim]
    rest = np.delete(rows, victim, axis=0)
    standing_out = np.abs(row) / np.median(np.abs(rest), axis=0)
    for part in (0.02, 0.25, 0.6):
        there = standing_out > np.quantile(standing_out, 1 - part)
        loud = np.where(there, 0.0, np.abs(rows).max(axis=0) * rng.choice([-1.0, 1.0], size=(f, 1)))
        yield loud + 0.01 * rng.normal(size=loud.shape) * ~there
        yield np.where(there, 0.0, rest[:f])
    yield np.zeros((f, rows.shape[1])) + 1e-9 * rng.normal(size=rows.shape[1])


@pytest.mark.parametrize("n", [4, 5, 8, 12, 20])
def test_a_minority_lowers_the_limit_to_the_median_honest_entry_and_no_further(n):
    rng = np.random.default_rng(n)
    f = (n - 1) // 2
    rows = honest_rows(n - f, 2000, rng)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    least = np.sort(np.abs(unit), axis=0)[(n - f - 1) // 2]  # of the two in the middle, the lower
    most = np.where(np.abs(unit) > 4.0 * least, unit**2, 0.0).sum(axis=1)
    for sent in minorities(rows, f, 0, rng):
        entries = relative(torch.from_numpy(np.vstack([rows, sent])))
        found = squared(lone_entries(entries, np.ones(n, bool), 4.0))[: n - f]
        assert (found <= most + 1e-12).all()


@pytest.mark.parametrize("n", [5, 12])
def test_no_honest_client_is_left_out_for_lone_weights_whatever_a_minority_sends(n):
    """The watch alone, as in auto, with different clients; the minority aims at one of them for six rounds."""
    f = (n - 1) // 2
    for aim in range(7):
        rng = np.random.default_rng(aim)
        watches = [w for w in fw.Warden.preset("auto").watches if "alone" in str(w.signal).lower()]
        warden = fw.Warden(watches, "quarantine", share_copies=True, quorum=4)
        usual = honest_rows(n - f, 1000, rng)
        for t in range(1, 7):
            rows = usual + 0.5 * np.abs(usual) * rng.normal(size=usual.shape)
            sent = list(minorities(rows, f, 0, rng))[aim]
            record = warden.step(cohort(np.vstack([rows, sent]), t)).record
            assert record.excluded == ()
            assert (record.weights[: n - f] > 0).all()


def backdoored(t, n=12, f=3):
    rng = np.random.default_rng(t)
    rows = np.hstack([1.0 + rng.normal(size=(n, 1500)), np.zeros((n, 100))])
    rows[:f, 1500:] = 3.0 + rng.normal(size=(f, 100))
    return cohort(rows, t)


def test_auto_cuts_what_a_quarter_that_trains_a_trigger_does_and_leaves_it_in():
    """The trigger's weights move by no more than the others move them, which is not at all."""
    warden = make("preset", "auto").but(secret=0)
    for t in (1, 2, 3):
        came = backdoored(t)
        outcome = warden.step(came)
        told = [note for note in outcome.record.notes if note.kind == "lone_weights"]
        assert [note.clients for note in told] == [("c00", "c01", "c02")]
        assert not outcome.update[1500:].any()
        assert outcome.update[:1500].abs().mean() > 0.5  # the others' part of the model still moves
    assert warden.excluded == ()


def test_large_cohorts_are_sampled(monkeypatch):
    exact = make("signal", "alone")(backdoored(1)).values
    monkeypatch.setattr(alone, "ENTRIES", 12 * 800)
    monkeypatch.setattr(alone, "COLUMNS", 1)
    found = make("signal", "alone")(backdoored(1)).values
    assert 0 < np.abs(found - exact).max() < 0.1


def test_nobody_knows_what_is_looked_at_before_all_have_sent(monkeypatch):
    """Another client's length, or another round, and other columns are drawn; last digits of a sum do not matter."""
    drawn = []
    monkeypatch.setattr(alone, "COLUMNS", 32)
    monkeypatch.setattr(alone, "ENTRIES", 1)
    monkeypatch.setattr(alone, "lone_entries", lambda entries, _trusted, _times: drawn.append(entries[0]) or entries)
    rows = np.vstack([np.arange(1.0, 1001.0), *(np.ones((4, 1000)) * [[1], [2], [3], [4]])])
    signal = make("signal", "alone")
    for t, factor in [(1, 1.0), (1, 1 + 1e-6), (1, 1.1), (2, 1.0)]:
        sent = rows.copy()
        sent[4] *= factor
        signal(cohort(sent, t))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3])


def steered(wanted, hidden=32, pixels=12, n=10):
    """A round in which client 0 alone moves the weights of three pixels, to change the outputs by ``wanted``."""
    rng = np.random.default_rng(0)
    classes = len(wanted)
    output = output_layer([(hidden, pixels), (hidden,), (classes, hidden), (classes,)])
    later = rng.normal(size=(classes, hidden))
    first = 1e-4 * rng.normal(size=(n, hidden, pixels))
    first[:, :, 3:] = 0.1 * rng.normal(size=(n, hidden, pixels - 3))
    first[0, :, :3] = 0.3 * (np.linalg.pinv(later) @ wanted)[:, None]
    rest = 0.1 * rng.normal(size=(n, hidden + later.size + classes))
    rows = np.hstack([first.reshape(n, -1), rest])
    params = torch.zeros(rows.shape[1])
    params[output.start : output.bias] = torch.from_numpy(later).reshape(-1)
    return replace(cohort(rows), output=output, params=params)


def judged(*rounds):
    """The scores of the client that moves weights alone, round by round."""
    history, state, found = make("history", "leaning"), {}, []
    for round in rounds:
        reading = Alone()(round)
        values = np.column_stack([reading.values, *reading.parts.values()]) if reading.parts else reading.values
        state, scores = history.step(state, round.client_ids, values)
        found.append(scores[0])
    return found


def test_lone_weights_that_raise_one_class_lean_and_those_that_raise_several_do_not():
    trigger, other_inputs = steered([0.0, 0.0, 0.0, 5.0, 0.0]), steered([4.0, 4.0, -4.0, -4.0, 0.0])
    assert judged(trigger)[0] > 0.9
    assert judged(other_inputs)[0] < 0.5
    for unknown in (replace(other_inputs, output=None), replace(other_inputs, params=None)):
        assert judged(unknown) == [1.0]  # cannot tell


def test_what_changes_from_round_to_round_leans_less_and_less():
    """Each round raises one class, but another one each time; a trigger raises the same."""
    one = [steered(np.roll([5.0, 0.0, 0.0, 0.0, 0.0], t)) for t in range(4)]
    assert judged(*one)[0] > 0.9
    assert judged(*one)[-1] < 0.3
    assert min(judged(*one[:1] * 5)) > 0.9


def test_of_two_classes_any_lone_weights_count():
    """What raises one of two classes lowers the other: a trigger looks like anything else."""
    assert judged(steered([3.0, -1.0])) == [pytest.approx(1.0)]


def test_effects_against_a_forward_pass_of_three_layers():
    """The change of the outputs for an input of ones, with the layers in between as they were."""
    rng = np.random.default_rng(1)
    shapes = [(6, 4), (6,), (5, 6), (5,), (3, 5), (3,)]
    output = output_layer(shapes)
    w = [rng.normal(size=shape) for shape in shapes]
    params = torch.from_numpy(np.concatenate([x.ravel() for x in w]))
    lone = [rng.normal(size=shape) for shape in shapes[:3:2]]
    row = np.concatenate([lone[0].ravel(), np.zeros(6), lone[1].ravel()])
    expected = w[4] @ (w[2] @ lone[0].sum(1) + lone[1].sum(1))
    found = alone.on_outputs(torch.from_numpy(row)[None], np.arange(len(row)), params, output.dense)
    np.testing.assert_allclose(found[0], expected)
