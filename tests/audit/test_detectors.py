"""GradNorm, ReAct and MAGDiff against autograd and loops, and as a source of the auditor."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fedwarden as fw
from fedwarden.audit.detectors import cut_at, gradnorm, last_linear, magdiff, react


def layer(seed=0, n=6, hidden=5, classes=3):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*s, generator=generator) for s in ((n, hidden), (classes, hidden), (classes,)))


def test_gradnorm_is_the_norm_of_the_gradient_by_autograd():
    h, w, b = (x.double() for x in layer())
    norms = []
    for sample in h:
        weight = w.clone().requires_grad_()
        logits = sample @ weight.T + b
        uniform = torch.full((3,), 1 / 3, dtype=torch.float64)
        F.kl_div(logits.log_softmax(0), uniform, reduction="sum").backward()
        norms.append(float(weight.grad.abs().sum()))
    assert gradnorm(h, h @ w.T + b) == pytest.approx(np.mean(norms))


def test_react_cuts_the_largest_features():
    h, w, b = layer()
    cut = cut_at(h)
    assert cut == pytest.approx(np.quantile(h.numpy(), 0.9))
    logits = np.minimum(h.numpy(), cut) @ w.numpy().T + b.numpy()
    assert react(h, w, b, cut) == pytest.approx(np.log(np.exp(logits).sum(axis=1)).mean(), rel=1e-6)


def test_magdiff_is_that_of_a_loop_over_edges():
    (h, w, _), (old, old_w, _) = layer(0), layer(1)
    labels = torch.tensor([0, 1, 0, 2, 1, 0])
    found = []
    for i, c in enumerate(labels.tolist()):
        of_class = [k for k, label in enumerate(labels.tolist()) if label == c]
        squares = 0.0
        for j in range(3):
            for e in range(5):
                mean = np.mean([float(old_w[j, e] * old[k, e]) for k in of_class])
                squares += (float(w[j, e] * h[i, e]) - mean) ** 2
        found.append(np.sqrt(squares))
    assert magdiff(h, w, old, old_w, labels) == pytest.approx(np.mean(found), rel=1e-6)


def test_the_auditor_reads_them_where_they_are_named():
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    probe = torch.randn(7, 2, 2, generator=torch.Generator().manual_seed(0))
    auditor = fw.Auditor(net, probe, n=2, sources=("detectors",))
    d = sum(p.numel() for p in net.parameters())
    models = torch.randn(3, d, generator=torch.Generator().manual_seed(1))
    seen = [o for t, m in enumerate(models, 1) for o in auditor.observe(t, m, own=m)]
    assert [(o.round, o.metric) for o in seen] == [(t, m) for t in (2, 3) for m in ("gradnorm", "react", "magdiff")]
    torch.nn.utils.vector_to_parameters(models[2], net.parameters())
    with torch.no_grad():
        expected = gradnorm(net[:3](probe), net(probe))
    assert seen[3].value == pytest.approx(expected, rel=1e-5)
    assert "detectors" not in fw.Auditor(net, probe, n=2).sources


def test_a_model_without_a_last_linear_layer_has_none():
    assert last_linear({"0.weight": torch.ones(6)}, {"0": torch.ones(4, 2)}, torch.ones(4, 3)) is None
    assert (
        last_linear({"0.weight": torch.ones(6), "0.bias": torch.ones(3)}, {"0": torch.ones(4, 2)}, torch.ones(4, 3))
        is None
    )
