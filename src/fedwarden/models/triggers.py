"""Triggers of backdoors: small marks that a model answers with one class, searched for and unlearned.

A client that teaches a backdoor teaches a short way to a class, which a search finds as the smallest mark that leads
to the class. The mark is unlearned in closed form: each fully connected layer is changed as little as possible, so that
it gives for marked images what it gives for the same images without the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from ..core.types import Cohort
from .batched import each_model, evaluating

State = dict[str, Tensor]

STEPS = 40  # of the search; with 150, sizes fall by a tenth in all classes alike
BATCH = 16  # images of a step; 48 find the same triggers
RATE = 0.3  # Adam's learning rate
PRICE = 0.01  # nats of the mean loss per pixel of a trigger
STRENGTH = 0.1  # of the ridge penalty, in mean squares of the inputs; from .01 to 1 the accuracy is the same


@dataclass(frozen=True, eq=False)
class Triggers:
    """Triggers: masks (K, 1, h, w) in [0, 1], patterns (K, c, h, w), the share of images that each turns, its class."""

    masks: Tensor
    patterns: Tensor
    rates: Tensor

    labels: Tensor

    @property
    def sizes(self) -> Tensor:
        """How many pixels each one covers."""
        return self.masks.sum(dim=(1, 2, 3))

    def __getitem__(self, index: Tensor | slice) -> Triggers:
        return Triggers(self.masks[index], self.patterns[index], self.rates[index], self.labels[index])

    def followed(self, more: Triggers) -> Triggers:
        """These and then others."""
        pairs = ((getattr(self, part.name), getattr(more, part.name)) for part in fields(self))
        return Triggers(*(torch.cat(pair) for pair in pairs))

    def on(self, x: Tensor) -> Tensor:
        """The images x (B, c, h, w) with each trigger: (K, B, c, h, w).

        x' = (1 - m) x + m p
        """
        m, p = self.masks[:, None], self.patterns[:, None]
        return x[None] * (1 - m) + m * p


def balanced(outputs: Tensor, clean: Tensor) -> Tensor:
    """Outputs (..., K) without the preference that the model has for some classes on images (B, K) without a trigger.

    Noise is often one class to a model. That class would need no trigger at all.
    """
    usual: Tensor = clean.log_softmax(dim=1).logsumexp(dim=0)
    return outputs - usual


def search(model: Callable[[Tensor], Tensor], x: Tensor, classes: int, generator: torch.Generator) -> Triggers:
    """For each class the smallest trigger that makes the model answer it.

        min over m, p of mean_x CE(f((1 - m) x + m p), c) + PRICE |m|_1

    After Wang et al., Neural Cleanse: Identifying and Mitigating Backdoor Attacks in Neural Networks (2019).
    """
    c, h, w = x.shape[1:]
    low, high = x.min(), x.max()
    a = torch.full((classes, 1, h, w), -2.0, device=x.device).requires_grad_()
    b = (0.1 * torch.randn(classes, c, h, w, generator=generator)).to(x.device).requires_grad_()
    labels = torch.arange(classes, device=x.device)
    with torch.no_grad():
        usual = model(x)

    def made() -> Triggers:
        return Triggers(a.sigmoid(), low + (high - low) * b.sigmoid(), torch.zeros(classes, device=x.device), labels)

    with torch.enable_grad():
        optimizer = torch.optim.Adam([a, b], lr=RATE, betas=(0.5, 0.9))
        for _ in range(STEPS):
            chosen = torch.randperm(len(x), generator=generator)[:BATCH].to(x.device)
            now = made()
            outputs = balanced(model(now.on(x[chosen]).flatten(0, 1)), usual).unflatten(0, (classes, -1))
            losses = -outputs.log_softmax(-1)[labels, :, labels].mean(dim=1)
            (losses + PRICE * now.sizes).sum().backward(inputs=[a, b])
            optimizer.step()
            optimizer.zero_grad()
    with torch.no_grad():
        found = made()
        return replace(found, rates=turned(model, x, found))


def turned(model: Callable[[Tensor], Tensor], x: Tensor, triggers: Triggers) -> Tensor:
    """The share of images of other classes that each trigger turns into its class."""
    labels = triggers.labels
    with torch.no_grad():
        usual = model(x)
        others = balanced(usual, usual).argmax(1)[None] != labels[:, None]
        outputs = balanced(model(triggers.on(x).flatten(0, 1)), usual).unflatten(0, (len(labels), -1))
    hits = (outputs.argmax(-1) == labels[:, None]) & others
    rates: Tensor = hits.sum(dim=1) / others.sum(dim=1).clamp(min=1)
    return rates


def strengthened(model: nn.Module, cohort: Cohort, x: Tensor, triggers: Triggers) -> NDArray[np.float64]:
    """How much more than the global model each client's model turns images into the class of a trigger, (n,).

    g_i = max over triggers of mean_x [log p_i(c | x with it) - log p_i(c | x)],   less that of the global model
    """
    index = torch.arange(len(triggers.labels), device=x.device)

    def look() -> list[Tensor]:
        outputs = model(triggers.on(x).flatten(0, 1)).unflatten(0, (len(index), -1)).log_softmax(-1)
        marked, clean = outputs[index, :, triggers.labels], model(x).log_softmax(-1)[:, triggers.labels].T
        return [(marked - clean).mean(dim=1)]

    with evaluating(model):
        gains = torch.cat([found for (found,) in each_model(look, model, cohort)])
    return np.asarray((gains[1:] - gains[0]).double().cpu().numpy())


def unlearned(weight: Tensor, bias: Tensor, clean: Tensor, stamped: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The linear layer, changed least, with the ``wanted`` outputs (B, o) for clean and for stamped inputs (B, k).

        min over W', b' of |[C 1; S 1] [W' b']^T - [Y; Y]|^2 + mu |[W' b'] - [W b]|^2

    mu is a tenth of the mean square of the inputs, times their number.

    >>> clean, stamped = torch.tensor([[1.0, 0.0], [2.0, 0.0]]), torch.tensor([[1.0, 9.0], [2.0, 9.0]])
    >>> weight, _ = unlearned(torch.tensor([[1.0, 1.0]]), torch.zeros(1), clean, stamped, torch.tensor([[1.0], [2.0]]))
    >>> bool(weight[0, 0] > 0.8), bool(weight[0, 1].abs() < 0.2)
    (True, True)
    """
    inputs = torch.cat([clean, stamped])
    known = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1).double()
    missing = torch.cat([wanted, wanted]).double() - (inputs @ weight.T + bias).double()
    products = known.T @ known
    products.diagonal().add_(STRENGTH * products.diagonal().mean())
    change = torch.linalg.solve(products, known.T @ missing).to(weight)
    return weight + change[:-1].T, bias + change[-1]


@contextmanager
def listening(layer: nn.Module) -> Iterator[list[Tensor]]:
    """The inputs of a layer, one tensor per call."""
    held: list[Tensor] = []
    handle = layer.register_forward_pre_hook(lambda _, inputs: held.append(inputs[0].detach().flatten(0, -2)))
    try:
        yield held
    finally:
        handle.remove()


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """The fully connected layers, in order, that have a bias."""
    return {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.bias is not None}


def unlearn(model: nn.Module, state: State, x: Tensor, triggers: Triggers) -> State:
    """The state in which each fully connected layer gives, for images with triggers, what it gave without them.

    One layer after another is changed, see :func:`unlearned`. Where the first one sees pixels, nothing is left for the
    next.
    """
    layers, new, wanted = linear_layers(model), dict(state), dict[str, Tensor]()
    with ExitStack() as stack:
        clean = {name: stack.enter_context(listening(layer)) for name, layer in layers.items()}
        functional_call(model, state, (x,))
    for name in layers:
        wanted[name] = clean[name][0] @ state[f"{name}.weight"].T + state[f"{name}.bias"]
    many = len(triggers.rates)
    for name, layer in layers.items():
        with listening(layer) as stamped:
            functional_call(model, new, (triggers.on(x).flatten(0, 1),))
        weight, bias = new[f"{name}.weight"], new[f"{name}.bias"]
        inputs, outputs = clean[name][0].repeat(many, 1), wanted[name].repeat(many, 1)
        new[f"{name}.weight"], new[f"{name}.bias"] = unlearned(weight, bias, inputs, stamped[0], outputs)
    return new
