"""How good a model is, against plain computations."""

import math

import pytest
import torch
from torch import nn

from fedwarden.sim.evaluation import evaluate


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
