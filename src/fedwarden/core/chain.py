"""Many models that are a plain sequence of linear layers and rectifiers, run on the same samples layer by layer.

Most of a small model's time goes into getting to its layers. Here no module is entered for each model and no weight is
copied: a client's matrices are multiplied where they arrived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
from torch import Tensor, nn

from .forward import offset
from .layout import Layout
from .types import Cohort

RECTIFIERS = {nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.GELU, nn.SiLU}
NOTHING = {nn.Identity, nn.Dropout}  # in evaluation
TOGETHER = 16  # models at a time: what one layer gives of them stays in the caches


@dataclass(frozen=True, eq=False)
class Chain:
    """The steps of a model: reshaping first, then linear layers and rectifiers."""

    parts: tuple[nn.Module, ...]
    steps: tuple[nn.Module, ...]
    layout: Layout

    @classmethod
    def of(cls, model: nn.Module, samples: Tensor) -> Chain | None:
        """None where the model is anything else, or takes samples of more than one axis."""
        parts = list(model.modules())
        steps = [part for part in parts if type(part) not in {nn.Sequential, *NOTHING}]
        first = sum(1 for _ in takewhile(_flattens, steps))
        layout = Layout.of(model)
        plain = (
            type(model) is nn.Sequential
            and all(type(step) in {nn.Linear, *RECTIFIERS} for step in steps[first:])
            and [type(step) for step in steps[first : first + 1]] == [nn.Linear]
            and (first > 0 or samples.ndim == 2)
            and len(layout.names) == sum(1 + (step.bias is not None) for step in steps if isinstance(step, nn.Linear))
            and set(layout.dtypes) == {torch.float32}
        )
        return cls(tuple(parts), tuple(steps), layout) if plain else None

    @property
    def unheard(self) -> bool:
        """Whether nobody listens to the model's parts as they run: here they do not."""
        return not any(part._forward_hooks or part._forward_pre_hooks for part in self.parts)

    def each(self, cohort: Cohort, samples: Tensor, see: Callable[[Tensor], Tensor]) -> Iterator[list[Tensor]]:
        """Of groups of g models, the sums of outputs (g,) and what ``see`` makes of the inputs (g, N, k) of rectifiers.

        The global model comes first, then the clients'.
        """
        base, shift = offset(self.layout, cohort, samples.device)
        whole = [[base]] if cohort.updates.array is None else base[None]  # as the others: another way could turn a bit
        for rows in (whole, *_groups(cohort)):
            with torch.no_grad():
                yield self._run(samples, self._weights(rows, shift), see)

    def _weights(self, rows: Tensor | list[list[Tensor]], shift: Tensor | None) -> list[Sequence[Tensor]]:
        """Each matrix and bias of g models: stacked (g, ...), or one by one; over what was sent, where possible."""
        sizes = list(self.layout.sizes)
        shifts = [None] * len(sizes) if shift is None else shift.split(sizes)
        if isinstance(rows, Tensor):
            columns: Sequence[Sequence[Tensor]] = rows.float().split(sizes, dim=1)
        else:
            columns = list(zip(*(_pieces(row, sizes) for row in rows), strict=True))
        found: list[Sequence[Tensor]] = []
        for column, shape, part in zip(columns, self.layout.shapes, shifts, strict=True):
            if isinstance(column, Tensor):
                found.append((column if part is None else column + part).reshape(-1, *shape))
            else:
                found.append([(x if part is None else x + part).reshape(shape) for x in column])
        return found

    def _run(
        self, samples: Tensor, weights: Sequence[Sequence[Tensor]], see: Callable[[Tensor], Tensor]
    ) -> list[Tensor]:
        seen, x, k = list[Tensor](), samples, 0
        for step in self.steps:
            if isinstance(step, nn.Linear):
                bias = weights[k + 1] if step.bias is not None else None
                x = _linear(x if k else x.expand(len(weights[0]), *x.shape), weights[k], bias)
                k += 1 if bias is None else 2
            else:
                if k:
                    seen.append(see(x))
                x = step(x)
        return [x.sum(dim=(1, 2)), *seen]


def _linear(x: Tensor, matrices: Sequence[Tensor], biases: Sequence[Tensor] | None) -> Tensor:
    """x_i W_i^T + b_i of g models: (g, N, in) -> (g, N, out)."""
    if isinstance(matrices, Tensor):
        return torch.bmm(x, matrices.mT) if biases is None else torch.baddbmm(biases[:, None], x, matrices.mT)
    out = x.new_empty(*x.shape[:2], len(matrices[0]))
    for i, (z, y, w) in enumerate(zip(out.unbind(0), x.unbind(0), matrices, strict=True)):
        if biases is None:
            torch.mm(y, w.T, out=z)
        else:
            torch.addmm(biases[i], y, w.T, out=z)
    return out


def _groups(cohort: Cohort) -> Iterator[Tensor | list[list[Tensor]]]:
    """What the clients sent, ``TOGETHER`` of them at a time: as one array where it came as one."""
    for start in range(0, len(cohort), TOGETHER):
        stop = min(start + TOGETHER, len(cohort))
        whole = cohort.updates.array
        yield [cohort.updates.sent(i) for i in range(start, stop)] if whole is None else whole[start:stop]


def _pieces(row: list[Tensor], sizes: list[int]) -> Sequence[Tensor]:
    """One client's row, cut as the model is."""
    row = [piece.float() for piece in row]
    return row if [piece.numel() for piece in row] == sizes else torch.cat(row).split(sizes)


def _flattens(step: nn.Module) -> bool:
    return isinstance(step, nn.Flatten) and (step.start_dim, step.end_dim) == (1, -1)
