"""Many models that are a plain sequence of linear layers and rectifiers, run on the same samples layer by layer.

Most of a small model's time goes into getting to its layers. Here no module is entered for each model, and on a CPU no
weight is copied: a client's matrices are multiplied where they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor, nn

from ..core.types import Cohort
from ..updates.updates import Updates
from .batched import STACK_BYTES, offset, table
from .layout import Layout

RECTIFIERS = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU}
NOTHING = {nn.Identity, nn.Dropout}  # in evaluation
TOGETHER = 16  # models at a time: what one layer gives of them stays in the caches


@dataclass(frozen=True, eq=False)
class PlainMLP:
    """The steps of a multilayer perceptron: reshaping first, then linear layers and rectifiers."""

    parts: tuple[nn.Module, ...]
    steps: tuple[nn.Module, ...]
    layout: Layout

    @classmethod
    def of(cls, model: nn.Module, samples: Tensor) -> PlainMLP | None:
        """None where the model is anything else, or takes samples of more than one axis."""
        steps = [step for step in _steps(model) if type(step) not in NOTHING]
        first = sum(1 for _ in takewhile(_flattens, steps))
        linear = [step for step in steps if isinstance(step, nn.Linear)]
        layout = Layout.of(model)
        plain = (
            type(model) is nn.Sequential
            and all(type(step) in {nn.Linear, *RECTIFIERS} for step in steps[first:])
            and [type(step) for step in steps[first : first + 1]] == [nn.Linear]
            and (first > 0 or samples.ndim == 2)
            and len(set(linear)) == len(linear)
            and all(step.in_features and step.out_features for step in linear)
            and len(layout.names) == sum(1 + (step.bias is not None) for step in linear)
            and set(layout.dtypes) == {torch.float32}
        )
        return cls(tuple(model.modules()), tuple(steps), layout) if plain else None

    @property
    def unheard(self) -> bool:
        """Whether nobody listens to the model's parts as they run: here they do not."""
        return not any(part._forward_hooks or part._forward_pre_hooks for part in self.parts)

    def serves(self, models: int, samples: Tensor) -> bool:
        """Whether so many models can be run here: on a GPU all of them by one product a layer."""
        return self.unheard and (not samples.is_cuda or models <= self.room(len(samples)))

    def room(self, samples: int) -> int:
        """How many models a GPU runs at once, each on so many samples."""
        widths = sum(step.out_features for step in self.steps if isinstance(step, nn.Linear))
        return STACK_BYTES["cuda"] // (4 * (self.layout.d + widths * samples))

    def together(self, cohort: Cohort, samples: Tensor, see: Callable[[Tensor], Tensor]) -> list[Tensor]:
        """What :meth:`each` gives, of all models in one group of which each layer is one product.

        The global model is in it too: of another number of matrices a GPU may multiply in another order, and a turned
        bit would set a client apart that sent the very same.
        """
        base, shift = offset(self.layout, cohort, samples.device)
        rows = [base[None], table(cohort.updates, range(len(cohort)))] if len(cohort) else [base[None]]
        with torch.no_grad():
            return self._run(samples, [self._weights([torch.cat([r.to(samples) for r in rows])], shift)], see)

    def each(self, cohort: Cohort, samples: Tensor, see: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
        """Of groups of g models, the sums of outputs (g,) and what ``see`` makes of the inputs (g, N, k) of rectifiers.

        The global model comes first, then the clients'; on a GPU all of them are one group.
        """
        if samples.is_cuda:
            yield self.together(cohort, samples, see)
            return
        base, shift = offset(self.layout, cohort, samples.device)
        parts = [self._weights([base[None]], shift)]
        for start in range(0, max(len(cohort), 1), TOGETHER):
            group = range(start, min(start + TOGETHER, len(cohort)))
            parts += [self._weights(sent, shift) for sent in _sent(cohort.updates, group)]
            with torch.no_grad():
                yield self._run(samples, parts, see)
            parts = []

    def _weights(self, sent: Sequence[Tensor], shift: Tensor | None) -> list[Tensor]:
        """The matrices and biases (g, ...) of g models, of pieces (g, size); over the same memory where possible."""
        sizes = list(self.layout.sizes)
        if [piece.shape[1] for piece in sent] != sizes:
            sent = (sent[0] if len(sent) == 1 else torch.cat([piece.float() for piece in sent], dim=1)).split(sizes, 1)
        if shift is not None:
            sent = [piece + part for piece, part in zip(sent, shift.split(sizes), strict=True)]
        return [piece.float().reshape(-1, *shape) for piece, shape in zip(sent, self.layout.shapes, strict=True)]

    def _run(self, samples: Tensor, parts: Sequence[Sequence[Tensor]], see: Callable[[Tensor], Tensor]) -> list[Tensor]:
        seen, x, k = list[Tensor](), samples, 0
        for step in self.steps:
            if isinstance(step, nn.Linear):
                x = x if k else x.expand(sum(len(weights[0]) for weights in parts), *x.shape)
                biased = step.bias is not None
                x = _linear(x, [(weights[k], weights[k + 1] if biased else None) for weights in parts])
                k += 1 + biased
            else:
                if k:
                    seen.append(see(x))
                x = step(x)
        return [x.sum(dim=(1, 2)), *seen]


def _linear(x: Tensor, parts: Sequence[tuple[Tensor, Tensor | None]]) -> Tensor:
    """x_i W_i^T + b_i of g models, whose matrices lie in several places: (g, N, in) -> (g, N, out)."""
    out, start = x.new_empty(*x.shape[:2], parts[0][0].shape[1]), 0
    for matrices, biases in parts:
        stop = start + len(matrices)
        if biases is None:
            torch.bmm(x[start:stop], matrices.mT, out=out[start:stop])
        else:
            torch.baddbmm(biases[:, None], x[start:stop], matrices.mT, out=out[start:stop])
        start = stop
    return out


def _sent(updates: Updates, group: range) -> Iterator[list[Tensor]]:
    """What some clients sent, as pieces (g, size): of all of them at once where it came as one array."""
    if updates.array is not None:
        yield [updates.array[group.start : group.stop]]
    else:
        yield from ([piece[None] for piece in updates.sent(i)] for i in group)


def _steps(module: nn.Module) -> Iterator[nn.Module]:
    """What runs in a sequence, in order; a module that is in it twice runs twice."""
    if type(module) is not nn.Sequential:
        yield module
    else:
        for inner in module:
            yield from _steps(inner)


def _flattens(step: nn.Module) -> bool:
    return isinstance(step, nn.Flatten) and (step.start_dim, step.end_dim) == (1, -1)
