"""A model's state as one flat vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Names, shapes and dtypes of a model's state in order, and which entries enter distances.

    Parameters are measured; buffers (BatchNorm's statistics and counters) are aggregated but never measured.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    is_parameter: tuple[bool, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
        state = model.state_dict()
        return cls(
            tuple(state),
            tuple(tuple(v.shape) for v in state.values()),
            tuple(v.dtype for v in state.values()),
            tuple(name in parameters for name in state),
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(torch.Size(shape).numel() for shape in self.shapes)

    @property
    def d(self) -> int:
        return sum(self.sizes)

    def ranges(self) -> list[tuple[str, int, int]]:
        """Name, first column and the column after the last of every entry."""
        stops = list(accumulate(self.sizes))
        return [(name, stop - size, stop) for name, size, stop in zip(self.names, self.sizes, stops, strict=True)]

    @property
    def measured(self) -> tuple[tuple[int, int], ...]:
        """The column ranges of the parameters."""
        pairs = zip(self.ranges(), self.is_parameter, strict=True)
        return tuple((start, stop) for (_, start, stop), parameter in pairs if parameter)

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """One float32 vector; a copy."""
        return torch.cat([state[name].detach().reshape(-1).to(torch.float32) for name in self.names])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """The state with its names, shapes and dtypes; views where the dtype allows it, integers rounded."""
        parts = flat.split(list(self.sizes))
        return {
            name: (part if dtype.is_floating_point else part.round()).reshape(shape).to(dtype)
            for name, shape, dtype, part in zip(self.names, self.shapes, self.dtypes, parts, strict=True)
        }
