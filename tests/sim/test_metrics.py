"""Metrics against plain computations and hand-made records."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import fedwarden as fw
from fedwarden.sim.metrics import Detection, detection, evaluate, rounds_to


@pytest.mark.parametrize("batch", [1, 7, 20, 512])
def test_evaluate_is_accuracy_and_mean_cross_entropy(batch):
    torch.manual_seed(0)
    model, x, y = nn.Linear(5, 4), torch.randn(20, 5), torch.arange(20) % 4
    right, loss = 0, 0.0
    for features, label in zip(x, y.tolist(), strict=True):
        logits = model(features).tolist()
        right += max(range(4), key=logits.__getitem__) == label
        loss += math.log(sum(map(math.exp, logits))) - logits[label]
    accuracy, mean = evaluate(model, x, y, batch)
    assert accuracy == right / 20
    assert mean == pytest.approx(loss / 20, rel=1e-5)


def test_evaluation_is_without_dropout_and_without_gradients():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.9), nn.Linear(3, 2)).train()
    x, y = torch.randn(8, 3), torch.zeros(8, dtype=torch.long)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    assert evaluate(model, x, y) == evaluate(model, x, y)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert all(p.grad is None for p in model.parameters())


def test_rounds_to_a_target():
    values = {3: 0.9, 1: 0.2, 2: 0.95, 4: 0.1}
    assert rounds_to(values, 0.9) == 2  # the first in time, not in the mapping
    assert rounds_to(values, 0.2) == 1
    assert rounds_to(values, 0.951) is None
    assert rounds_to({}, 0.0) is None


def record(t, ids, weights, flagged, excluded=(), rejected=()):
    return fw.RoundRecord(
        t, tuple(ids), np.ones(len(ids)), np.array(weights), flagged=np.array(flagged, bool), excluded=tuple(excluded),
        rejected=tuple(fw.Rejection(c, "why") for c in rejected),
    )  # fmt: skip


def test_detection_is_the_first_round_a_client_was_left_out_by_a_verdict():
    records = [
        record(1, "abcd", [0.25] * 4, [1, 0, 0, 0]),  # a is flagged and kept, as by observe
        record(2, "abcd", [0.0, 0.5, 0.5, 0.0], [1, 0, 0, 0], excluded="a", rejected="d"),  # d is no verdict
        record(3, "bcd", [0.0, 0.5, 0.5], [1, 0, 0], excluded="a"),  # b is left out of this round only
        record(4, "bcd", [0.5, 0.5, 0.0], [0, 0, 0], excluded="a"),  # d is not picked, and not flagged
    ]
    found = detection(records, ["a", "c"])
    assert found == Detection(("a", "c"), ("a",), ("b",), {"a": 2, "b": 3})
    assert (found.recall, found.precision) == (0.5, 0.5)


def test_who_is_excluded_without_taking_part_counts_too():
    found = detection([record(5, "bc", [0.5, 0.5], [0, 0], excluded=("a",))], ["a"])
    assert found.first_excluded == {"a": 5}
    assert (found.recall, found.precision) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("caught", "wronged", "attackers", "recall", "precision"),
    [("", "", "", 1.0, 1.0), ("", "", "ab", 0.0, 1.0), ("", "xy", "", 1.0, 0.0), ("ab", "x", "abcd", 0.5, 2 / 3)],
)
def test_recall_and_precision(caught, wronged, attackers, recall, precision):
    found = Detection(tuple(attackers), tuple(caught), tuple(wronged), {})
    assert (found.recall, found.precision) == (recall, pytest.approx(precision))


def test_nothing_was_recorded():
    assert detection([], ["a"]) == Detection(("a",), (), (), {})
