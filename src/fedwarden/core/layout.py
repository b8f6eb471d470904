"""A model's state as one flat vector, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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

    @property
    def measured(self) -> tuple[tuple[int, int], ...]:
        """The column ranges of the parameters."""
        ranges, start = [], 0
        for size, parameter in zip(self.sizes, self.is_parameter, strict=True):
            if parameter:
                ranges.append((start, start + size))
            start += size
        return tuple(ranges)

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
