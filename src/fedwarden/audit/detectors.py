"""Detectors of shifted or foreign inputs from the literature, read as sources of an audit.

They were made for one model and inputs that change. Here the inputs, the probe, stay, and the model changes: a value a
round, whose departure from its trend is looked at like that of the other sources. All of them read the last linear
layer, weights (C, H) and bias (C,), and what goes into it, features (N, H).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def cut_at(features: Tensor, quantile: float = 0.9) -> float:
    """The value below which a share of all features lies, where ReAct cuts them.

    >>> cut_at(torch.arange(11.0).reshape(1, 11))
    9.0
    """
    return float(np.quantile(features.double().cpu().numpy(), quantile))


def gradnorm(features: Tensor, logits: Tensor) -> float:
    """The mean L1 norm of the gradient that the divergence from a uniform answer has in the last layer's weights.

        S(x) = || d KL(u || softmax(f(x))) / dW ||_1 = 1/C sum_i |h_i| sum_j |1 - C p_j|

    Huang et al., On the Importance of Gradients for Detecting Distributional Shifts in the Wild, arXiv 2110.00218,
    at temperature 1.

    >>> gradnorm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 0.0]]))
    0.0
    >>> round(gradnorm(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.75, 0.25]]).log()), 4)  # 3 (.5 + .5) / 2
    1.5
    """
    p = logits.double().softmax(dim=1)
    classes = p.shape[1]
    size = features.double().abs().sum(dim=1) * (1 - classes * p).abs().sum(dim=1) / classes
    return float(size.mean())


def react(features: Tensor, weight: Tensor, bias: Tensor, cut: float) -> float:
    """The mean energy of the answers from features that are cut at a value.

        S(x) = log sum_j exp(W min(h(x), c) + b)_j

    Sun et al., ReAct: Out-of-distribution Detection With Rectified Activations, arXiv 2111.12797, section 3.

    >>> one = torch.ones(1, 1)
    >>> react(9 * one, one, torch.zeros(1), cut=2.0)
    2.0
    """
    answers = features.double().clamp(max=cut) @ weight.double().T + bias.double()
    return float(answers.logsumexp(dim=1).mean())


def magdiff(features: Tensor, weight: Tensor, before: Tensor, weight_before: Tensor, labels: Tensor) -> float:
    """How far the activation graph of a sample lies from the mean graph of its class, in the mean over samples.

        G(x)_ji = W_ji h_i(x);   || G(x) - mean_{x' of the class of x} G'(x') ||_F

    Hensel et al., MAGDiff: Covariate Data Set Shift Detection via Activation Graphs of Deep Neural Networks, arXiv
    2305.13271. Differs from the paper: the mean graphs G' are those of the model of the round before, since here the
    model changes and not the samples; classes are the labels where they are known, else the predicted ones.

    >>> h, w = torch.tensor([[1.0, 0.0], [3.0, 0.0]]), torch.ones(1, 2)
    >>> magdiff(h, w, h, w, torch.tensor([0, 0]))  # both lie 1 from their mean of 2
    1.0
    """
    h, w = features.double(), weight.double()
    gaps = []
    for c in labels.unique():
        mine = labels == c
        mean = weight_before.double() * before.double()[mine].mean(dim=0)
        graphs = w[None] * h[mine][:, None, :]
        gaps.append((graphs - mean).flatten(1).norm(dim=1))
    return float(torch.cat(gaps).mean())


def last_linear(
    parameters: Mapping[str, Tensor], layers: Mapping[str, Tensor], logits: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Features, weights and bias of the linear layer that gives the logits; None where there is none.

    It is the last pair of a bias of C and a weight of C H entries for which some layer of H units gives the logits.
    """
    classes = logits.shape[1]
    names = [name.removesuffix("bias") for name in parameters if name.endswith("bias")]
    for name in reversed(names):
        bias, weight = parameters[f"{name}bias"], parameters.get(f"{name}weight")
        if weight is None or len(bias) != classes or len(weight) % classes:
            continue
        matrix = weight.reshape(classes, -1)
        for features in reversed(list(layers.values())):
            if features.shape[1] == matrix.shape[1]:
                gap = (features.double() @ matrix.double().T + bias.double() - logits.double()).abs().max()
                if float(gap) <= 1e-3 * max(1.0, float(logits.abs().max())):
                    return features, matrix, bias
    return None
