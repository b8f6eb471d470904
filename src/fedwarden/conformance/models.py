"""The laws of a model: an input shape and a number of classes in, a module out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.errors import ConfigError, MissingExtra
from ..sim.models import build_model
from .component import Component
from .law import CannotTell, laws, line, require

CLASSES, N = 5, 6


def _floats(shape: tuple[int, ...]) -> Tensor:
    return torch.rand((N, *shape), generator=torch.Generator().manual_seed(0))


def _tokens(shape: tuple[int, ...], many: int = 50) -> Tensor:
    return torch.randint(many, (N, *shape), generator=torch.Generator().manual_seed(0))


INPUTS: tuple[tuple[tuple[int, ...], Callable[[tuple[int, ...]], Tensor]], ...] = (
    ((1, 28, 28), _floats), ((3, 32, 32), _floats), ((20,), _floats), ((12,), _tokens),
    ((12,), partial(_tokens, many=CLASSES)),
)  # fmt: skip


@dataclass(frozen=True)
class Examined:
    """A model, and inputs that it takes."""

    component: Component
    inputs: Tensor

    def build(self, seed: int = 0) -> nn.Module:
        """The model with weights drawn from a seed, ready to evaluate."""
        shape = tuple(self.inputs.shape[1:])
        return build_model(self.component.name, self.component.options, shape, CLASSES, seed).eval()


def subject(component: Component) -> Examined:
    """The model with the first of some inputs that it takes: grey and colour images, a table, tokens."""
    reasons = []
    for shape, draw in INPUTS:
        try:
            found = Examined(component, draw(shape))
            found.build()(found.inputs)
        except MissingExtra as error:
            raise CannotTell(str(error)) from error
        except (ConfigError, RuntimeError, IndexError, TypeError) as error:
            reasons.append(f"{shape}: {line(error)}")
            continue
        return found
    raise CannotTell(f"it takes none of the inputs that are tried; {reasons[-1]}")


def one_output_per_class(it: Examined) -> None:
    """Every sample has one finite number per class."""
    for n in (1, N):
        out = it.build()(it.inputs[:n])
        require(out.shape == (n, CLASSES), f"expected ({n}, {CLASSES}) numbers; got {tuple(out.shape)}")
        require(out.isfinite().all(), f"n={n}: expected finite numbers; got others")


def samples_apart(it: Examined) -> None:
    """In evaluation a sample's output does not depend on the others of its batch."""
    model = it.build()
    off = float((model(it.inputs)[:2] - model(it.inputs[:2])).detach().abs().max())
    require(off < 1e-4, f"expected the same outputs in another batch; got others by {off:.3g}")


def seed_decides(it: Examined) -> None:
    """The seed decides on the weights: the same gives the same, another gives others."""
    first, again, other = (torch.cat([p.flatten() for p in it.build(s).parameters()]) for s in (0, 0, 1))
    require(torch.equal(first, again), "expected the same weights from the same seed; got others")
    require(not torch.equal(first, other), "expected other weights from another seed; got the same")


def learns(it: Examined) -> None:
    """Every trainable parameter has a finite gradient."""
    model = it.build()
    functional.cross_entropy(model(it.inputs), torch.arange(N) % CLASSES).backward()
    trained = {name: p.grad for name, p in model.named_parameters() if p.requires_grad}
    require(trained, "expected trainable parameters; got none")
    bad = [name for name, grad in trained.items() if grad is None or not grad.isfinite().all()]
    require(not bad, f"expected a finite gradient for all; got none for {', '.join(bad)}")


def input_untouched(it: Examined) -> None:
    """The inputs are only read, and evaluation does not change the model."""
    model, before = it.build(), it.inputs.clone()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model(it.inputs)
    require(torch.equal(it.inputs, before), "expected the inputs as they were; got others")
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, state[key])]
    require(not changed, f"expected the model as it was; got another {', '.join(changed)}")


LAWS = laws(one_output_per_class, samples_apart, seed_decides, learns, input_untouched)
